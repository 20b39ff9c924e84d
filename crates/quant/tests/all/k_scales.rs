//! The packed scales and minima of Q4_K and Q5_K.

use tokenmill_quant::formats::KScales;

#[test]
fn pack_inverts_unpack_on_every_bit() {
    for bit in 0..96 {
        let mut bytes = [0; 12];
        bytes[bit / 8] = 1 << (bit % 8);
        let (scales, mins) = KScales(bytes).unpack();
        assert_eq!(scales.iter().chain(&mins).map(|x| x.count_ones()).sum::<u32>(), 1);
        assert_eq!(KScales::pack(scales, mins), KScales(bytes));
    }
}
