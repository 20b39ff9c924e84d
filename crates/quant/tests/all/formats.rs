//! The table of formats, and rows whose lengths do not fit.

use tokenmill_gguf::TensorType;
use tokenmill_quant::{F16Bits, Format, QuantError};

#[test]
fn table_agrees_with_the_file_format() {
    for format in Format::all() {
        let ty = format.tensor_type();
        assert_eq!(format.block_len(), ty.block_len(), "{}", format.name());
        assert_eq!(format.block_bytes(), ty.block_bytes(), "{}", format.name());
        assert!(
            format.name().eq_ignore_ascii_case(format.file_name()),
            "{}",
            format.name()
        );
        assert!(
            std::ptr::eq(Format::of(ty).unwrap(), format),
            "{} twice",
            format.name()
        );
    }
}

#[test]
fn wrong_lengths_are_errors() {
    let format = Format::of(TensorType::Q4_0).unwrap();
    assert_eq!(
        format.dequantize_row(&[0; 18], &mut [0.0; 31]),
        Err(QuantError::PartialBlock {
            format: "Q4_0",
            block_len: 32,
            found: 31
        })
    );
    assert_eq!(
        format.quantize_row(&[0.0; 32], &mut [0; 17]),
        Err(QuantError::ByteLength {
            format: "Q4_0",
            n_values: 32,
            expected: 18,
            found: 17
        })
    );
    assert_eq!(
        Format::of(TensorType::F32).unwrap().row_bytes(usize::MAX),
        Err(QuantError::RowTooLong { found: usize::MAX })
    );
    assert_eq!(format.dequantize_row(&[], &mut []), Ok(()));
}

#[test]
fn every_half_decodes_to_its_value() {
    for bits in 0..=u16::MAX {
        let expected = half::f16::from_bits(bits).to_f32_const();
        let found = F16Bits::from_le_bytes(bits.to_le_bytes()).to_f32();
        assert!(
            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
            "{bits:04x}"
        );
        if !found.is_nan() {
            assert_eq!(F16Bits::from_f32(found).to_bits(), bits);
        }
    }
}
