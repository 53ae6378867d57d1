// SPDX-License-Identifier: Apache-2.0

// A Go program that calls Tenon through cgo.
package main

/*
#cgo pkg-config: tenon
#include <stdlib.h>
#include <tenon/tenon.h>
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

func main() {
	var failure C.tenon_error
	failure.struct_size = C.uint32_t(unsafe.Sizeof(failure))
	var dtype C.tenon_dtype
	name := C.CString("int64")
	defer C.free(unsafe.Pointer(name))
	cpu := C.tenon_device{_type: C.TENON_CPU}
	shape := [2]C.int64_t{2, 3}
	var array *C.tenon_array
	if C.tenon_dtype_from_name(name, &dtype, &failure) != C.TENON_OK ||
		C.tenon_array_create(dtype, 2, &shape[0], cpu, C.TENON_ZEROED, &array, &failure) != C.TENON_OK {
		fmt.Println(C.GoString(&failure.message[0]))
		os.Exit(1)
	}
	fmt.Printf("Go: %d bytes\n", C.tenon_array_describe(array).nbytes)
	C.tenon_array_release(array)
}
