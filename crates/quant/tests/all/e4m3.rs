//! Compares numbers of E4M3 with those of ml_dtypes (`tests/data/make_e4m3.py`).

use safetensors::SafeTensors;
use tokenmill_quant::e4m3;

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
        let found = e4m3::decode(code);
        assert!(
            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
            "{code:#04x}: {found} instead of {expected}"
        );
    }
    let (numbers, codes) = (floats("numbers"), bytes("codes"));
    assert_eq!((numbers.len(), codes.len()), (3072, 3072));
    for (number, expected) in numbers.into_iter().zip(codes) {
        assert_eq!(e4m3::encode(number), expected, "{number:e}");
    }
}
