//! 6-bit scales of a span: 256 values in 192 bytes.
//!
//! Three formats share this layout. The values are four vectors of 64, `v0..v3`. Byte `i` of the three stored
//! vectors holds value `i` of `v0`, `v1`, `v2` in its low bits and two bits of value `i` of `v3` in its high
//! ones. So masks and shifts unpack the bytes, which take no more memory than in the file.

use super::half_bytes;
use crate::simd::Simd;

/// The number of bytes of the packed values.
pub(super) const PACKED_BYTES: usize = 192;

/// Packs values below 64.
pub(super) fn pack(values: &[u8; 256], out: &mut [u8]) {
    for i in 0..64 {
        let high = values[192 + i];
        for part in 0..3 {
            out[64 * part + i] = values[64 * part + i] | ((high >> (2 * part)) & 3) << 6;
        }
    }
}

/// Unpacks the values.
///
/// # Safety
/// The processor has the features of `S`, and `packed` has [`PACKED_BYTES`].
#[inline(always)]
pub(super) unsafe fn unpack<S: Simd>(packed: *const u8, out: &mut [u8; 256]) {
    let out = out.as_mut_ptr();
    for at in (0..64).step_by(half_bytes::<S>()) {
        // SAFETY: all reads are below 192 and all writes below 256.
        unsafe {
            let low = S::splat_u8(0x3f);
            let a = S::load(packed.add(at));
            let b = S::load(packed.add(64 + at));
            let c = S::load(packed.add(128 + at));
            S::store(out.add(at), S::and(a, low));
            S::store(out.add(64 + at), S::and(b, low));
            S::store(out.add(128 + at), S::and(c, low));
            let high_a = S::and(S::shr16(a, 6), S::splat_u8(0x03));
            let high_b = S::and(S::shr16(b, 4), S::splat_u8(0x0c));
            let high_c = S::and(S::shr16(c, 2), S::splat_u8(0x30));
            S::store(out.add(192 + at), S::or(high_a, S::or(high_b, high_c)));
        }
    }
}
