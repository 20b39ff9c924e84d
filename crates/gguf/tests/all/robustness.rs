//! Damaged and random files: for any bytes the parser returns a sound header or an error.

use proptest::prelude::*;
use tokenmill_gguf::{Array, GgufWriter, Header, Metadata, TensorType, Value};
use tokenmill_testkit::{Random, skip};

use crate::mutation::{check, mutate, sample_files};

#[test]
fn samples_pass_their_own_check() {
    for (name, bytes) in sample_files() {
        check(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn truncation_at_every_byte_is_an_error_or_cuts_only_padding() {
    for (name, bytes) in sample_files() {
        let header = Header::parse(&bytes).unwrap();
        let first_whole = (0..bytes.len())
            .find(|&n_bytes| check(&bytes[..n_bytes]).is_ok())
            .unwrap_or(bytes.len());
        assert!(
            bytes.len() - first_whole < header.alignment as usize,
            "{name} is accepted with {first_whole} of {} bytes",
            bytes.len()
        );
        let data_end = header
            .tensors
            .iter()
            .map(|tensor| header.data_offset + tensor.offset as usize + tensor.n_bytes)
            .max();
        assert!(data_end.is_none_or(|data_end| data_end == first_whole), "{name}");
        for n_bytes in first_whole..bytes.len() {
            let cut = check(&bytes[..n_bytes]).unwrap();
            assert_eq!(cut.tensors, header.tensors, "{name} cut to {n_bytes}");
        }
    }
}

#[test]
fn fuzz_seeds_are_the_sample_files() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    if !dir.exists() {
        skip(
            "fuzz_seeds_are_the_sample_files",
            "a packaged crate has no fuzz target",
        );
        return;
    }
    for (name, bytes) in sample_files() {
        let path = dir.join(name).with_extension("gguf");
        let is_same = std::fs::read(&path).is_ok_and(|seed| seed == bytes);
        assert!(is_same, "{} is stale: run `cargo lab fuzz-seeds`", path.display());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_break_the_parser(sample in 0..5_usize, seed: u64, n_mutations in 1..12) {
        let mut bytes = sample_files().swap_remove(sample).1;
        let mut random = Random::new(seed);
        for _ in 0..n_mutations {
            mutate(&mut bytes, &mut random);
        }
        let _ = check(&bytes);
    }

    #[test]
    fn random_bytes_after_a_valid_start_never_break_the_parser(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = check(&tail);
        for version in [2_u32, 3] {
            let mut bytes = b"GGUF".to_vec();
            bytes.extend(version.to_le_bytes());
            bytes.extend(&tail);
            let _ = check(&bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        entries in prop::collection::btree_map("[a-z.]{1,12}", any_value(), 0..8),
        tensors in prop::collection::btree_map("[a-z.]{1,20}", any_tensor(), 0..6),
        alignment in prop::option::of(3..12_u32),
        version in 2..=3_u32,
    ) {
        let mut metadata = Metadata::new();
        for (key, value) in entries {
            metadata.insert(key, value).unwrap();
        }
        if let Some(log2) = alignment {
            metadata.insert("general.alignment", 1_u32 << log2).unwrap();
        }
        let mut writer = GgufWriter::with_metadata(metadata.clone());
        writer.set_version(version).unwrap();
        for (name, (ty, dims)) in &tensors {
            writer.add_tensor(name, *ty, dims).unwrap();
        }
        let mut out = writer.write_header(Vec::new()).unwrap();
        while let Some(tensor) = out.due() {
            // Two pieces, of which the first may be empty.
            let bytes = vec![0x5a; tensor.n_bytes];
            let (start, end) = bytes.split_at(bytes.len() / 3);
            if !start.is_empty() {
                out.write(start).unwrap();
            }
            out.write(end).unwrap();
        }
        let header = check(&out.finish().unwrap()).unwrap();
        prop_assert_eq!(header.version, version);
        prop_assert_eq!(header.metadata, metadata);
        prop_assert_eq!(header.alignment, 1 << alignment.unwrap_or(5));
        prop_assert_eq!(header.tensors.len(), tensors.len());
        for (tensor, (name, (ty, dims))) in header.tensors.iter().zip(&tensors) {
            prop_assert_eq!(&tensor.name, name);
            prop_assert_eq!(tensor.ty, *ty);
            prop_assert!(tensor.dims.iter().map(|&dim| dim as u64).eq(dims.iter().copied()));
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<i8>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<u16>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<i16>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<u32>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<i32>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<f32>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<u64>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<i64>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<f64>(), 0..9).prop_map(Value::from),
        prop::collection::vec(".{0,9}", 0..9)
            .prop_map(|strings| Value::from(Array::String(strings.into_iter().collect()))),
    ]
}

/// Generates a type and one to four dimensions that fit it.
fn any_tensor() -> impl Strategy<Value = (TensorType, Vec<u64>)> {
    let dims = prop::collection::vec(1..4_u64, 1..=4);
    (prop::sample::select(TensorType::ALL), dims).prop_map(|(ty, mut dims)| {
        dims[0] *= ty.block_len() as u64;
        (ty, dims)
    })
}
