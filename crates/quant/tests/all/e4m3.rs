//! Numbers of E4M3: by their definition, and those of ml_dtypes (`tests/data/make_e4m3.py`).

use safetensors::SafeTensors;
use tokenmill_quant::e4m3::{MAX, decode, encode};

#[test]
fn codes_and_their_numbers_are_those_of_ml_dtypes() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/vectors/E4M3.safetensors"
    );
    let data = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&data).unwrap();
    let bytes = |name: &str| file.tensor(name).unwrap().data().to_vec();
    let floats = |name: &str| -> Vec<f32> {
        let bytes = bytes(name);
        (bytes.as_chunks::<4>().0.iter())
            .map(|&x| f32::from_le_bytes(x))
            .collect()
    };
    let values = floats("values");
    assert_eq!(values.len(), 256);
    for (code, expected) in (0..=255).zip(values) {
        let found = decode(code);
        assert!(
            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
            "{code:#04x}: {found} instead of {expected}"
        );
    }
    let (numbers, codes) = (floats("numbers"), bytes("codes"));
    assert_eq!((numbers.len(), codes.len()), (3072, 3072));
    for (number, expected) in numbers.into_iter().zip(codes) {
        assert_eq!(encode(number), expected, "{number:e}");
    }
}

#[test]
fn codes_are_floats_of_four_and_three_bits() {
    for code in 0..=255_u8 {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let sign = if code < 128 { 1.0 } else { -1.0 };
        let expected = match exponent {
            0 => sign * 2_f32.powi(-6) * (mantissa / 8.0),
            _ => sign * 2_f32.powi(exponent - 7) * (1.0 + mantissa / 8.0),
        };
        let found = decode(code);
        if code & 0x7f == 0x7f {
            assert!(found.is_nan());
        } else {
            assert_eq!(found.to_bits(), expected.to_bits(), "{code:#04x}");
        }
        assert_eq!(encode(found), code, "{found}");
    }
    assert_eq!([0x7e, 0x38, 0x01].map(decode), [MAX, 1.0, 1.0 / 512.0]);
}

#[test]
fn halves_go_to_the_even_code_and_neighbours_to_the_nearest() {
    for code in 0..0x7e_u8 {
        let (low, high) = (decode(code), decode(code + 1));
        let half = f32::midpoint(low, high);
        assert_eq!(encode(half), code + code % 2, "{half}");
        assert_eq!(encode(half.next_down()), code);
        assert_eq!(encode(half.next_up()), code + 1);
        assert_eq!(encode(-half.next_up()), 0x80 | (code + 1));
    }
}

#[test]
fn numbers_beyond_the_largest_become_the_largest_and_what_is_none_stays_none() {
    for x in [449.0, 464.0, 480.0, 1e9, f32::MAX] {
        assert_eq!([encode(x), encode(-x)], [0x7e, 0xfe], "{x}");
    }
    for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN] {
        assert_eq!(encode(x) & 0x7f, 0x7f, "{x}");
    }
    for x in [0.0, f32::MIN_POSITIVE, 1e-45, 1.0 / 1024.0] {
        assert_eq!([encode(x), encode(-x)], [0x00, 0x80], "{x}");
    }
}
