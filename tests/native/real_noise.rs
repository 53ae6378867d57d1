// SPDX-License-Identifier: Apache-2.0
//
// A generator in Rust: uniform numbers from SplitMix64, and their mean for each row. Does not use Tenon.

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut x = *state;
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// # Safety
/// `noise` has n * columns elements, `largest` n.
#[no_mangle]
pub unsafe extern "C" fn fill(
    noise: *mut f32,
    largest: *mut i64,
    n: usize,
    seed: u64,
    index: u64,
    columns: u64,
    bad_index: u64,
) -> i32 {
    if index == bad_index {
        return -22;
    }
    let columns = columns as usize;
    let noise = std::slice::from_raw_parts_mut(noise, n * columns);
    let largest = std::slice::from_raw_parts_mut(largest, n);
    let mut state = seed;
    for (row, place) in noise.chunks_exact_mut(columns).zip(largest) {
        for element in row.iter_mut() {
            *element = (split_mix(&mut state) >> 40) as f32 / 16_777_216.0;
        }
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        *place = best.map_or(-1, |(i, _)| i as i64);
    }
    0
}
