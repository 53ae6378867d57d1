// SPDX-License-Identifier: Apache-2.0
// A Rust program with the bindings that bindgen makes from tenon/tenon.h.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code)]

include!("bindings.rs");

fn main() {
    unsafe {
        let mut error: tenon_error = std::mem::zeroed();
        error.struct_size = std::mem::size_of::<tenon_error>() as u32;
        let mut dtype: tenon_dtype = std::mem::zeroed();
        let name = b"int64\0".as_ptr() as *const std::os::raw::c_char;
        assert_eq!(tenon_dtype_from_name(name, &mut dtype, &mut error), TENON_OK as tenon_status);
        let cpu = tenon_device { type_: TENON_CPU as i32, id: 0 };
        let shape: [i64; 2] = [2, 3];
        let mut array: *mut tenon_array = std::ptr::null_mut();
        let status = tenon_array_create(dtype, 2, shape.as_ptr(), cpu, TENON_ZEROED, &mut array, &mut error);
        assert_eq!(status, TENON_OK as tenon_status);
        println!("Rust: {} bytes", (*tenon_array_describe(array)).nbytes);
        tenon_array_release(array);
    }
}
