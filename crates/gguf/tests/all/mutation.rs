//! Sample files, a mutator that damages them, and the claims that must hold for any bytes.
//!
//! The property tests run everywhere, and the fuzz target runs for hours: each can repeat the other's findings.
//! Invariant: everything here depends only on its arguments.

use tokenmill_gguf::{
    Array, GgufError, GgufFile, GgufWriter, Header, Metadata, StringArray, TensorType, Value, ValueType,
};
use tokenmill_testkit::Random;

/// Valid files that together use every part of the format, with a name each.
pub(crate) fn sample_files() -> Vec<(&'static str, Vec<u8>)> {
    let mut scalars = GgufWriter::new();
    let metadata = scalars.metadata_mut();
    for (key, value) in [
        ("u8", Value::from(1_u8)),
        ("i8", Value::from(-1_i8)),
        ("u16", Value::from(2_u16)),
        ("i16", Value::from(-2_i16)),
        ("u32", Value::from(3_u32)),
        ("i32", Value::from(-3_i32)),
        ("f32", Value::from(0.5_f32)),
        ("bool", Value::from(true)),
        ("string", Value::from("grüße")),
        ("u64", Value::from(4_u64)),
        ("i64", Value::from(-4_i64)),
        ("f64", Value::from(f64::NAN)),
    ] {
        metadata.insert(key, value).expect("distinct keys");
    }

    let mut arrays = GgufWriter::new();
    let metadata = arrays.metadata_mut();
    let strings: StringArray = ["<s>", "", "a b", "\u{1f600}"].into_iter().collect();
    for (key, value) in [
        ("general.alignment", Value::from(8_u32)),
        ("tokenizer.ggml.tokens", Value::from(strings)),
        (
            "tokenizer.ggml.scores",
            Value::from(vec![0.0_f32, -1.0, f32::NEG_INFINITY]),
        ),
        ("tokenizer.ggml.token_type", Value::from(vec![1_i32, 3, 6])),
        ("bytes", Value::from(vec![1_u8, 2, 3])),
        ("shorts", Value::from(vec![1_u16, 2])),
        ("longs", Value::from(vec![1_u64, u64::MAX])),
        ("claims", Value::from(vec![true, false])),
        ("none", Value::from(Vec::<f64>::new())),
    ] {
        metadata.insert(key, value).expect("distinct keys");
    }

    let mut tensors = GgufWriter::new();
    tensors.set_version(2).expect("a supported version");
    tensors
        .metadata_mut()
        .insert("general.alignment", 64_u32)
        .expect("a new key");
    for (name, ty, dims) in [
        ("token_embd.weight", TensorType::Q8_0, &[32, 3][..]),
        ("blk.0.attn_q.weight", TensorType::Q4_K, &[256, 2]),
        ("blk.0.ffn_gate_exps.weight", TensorType::MXFP4, &[32, 2, 2]),
        ("output_norm.weight", TensorType::F32, &[5]),
        ("scale", TensorType::F16, &[]),
        ("conv", TensorType::I8, &[1, 2, 3, 4]),
    ] {
        tensors.add_tensor(name, ty, dims).expect("a valid tensor");
    }

    let mut part = GgufWriter::new();
    let metadata = part.metadata_mut();
    metadata.insert("split.no", 1_u16).expect("a new key");
    metadata.insert("split.count", 2_u16).expect("a new key");
    metadata.insert("split.tensors.count", 2_i32).expect("a new key");
    part.add_tensor("a", TensorType::BF16, &[4])
        .expect("a valid tensor");

    [
        ("empty", GgufWriter::new()),
        ("scalars", scalars),
        ("arrays", arrays),
        ("tensors", tensors),
        ("part", part),
    ]
    .map(|(name, writer)| (name, filled(writer)))
    .into()
}

/// Writes a file whose tensors hold a running byte.
fn filled(writer: GgufWriter) -> Vec<u8> {
    let mut out = writer.write_header(Vec::new()).expect("memory takes all writes");
    while let Some(tensor) = out.due() {
        let bytes: Vec<u8> = (0..tensor.n_bytes).map(|index| index as u8).collect();
        out.write(&bytes).expect("memory takes all writes");
    }
    out.finish().expect("all tensors were written")
}

/// Numbers at which lengths, counts, types and offsets tend to break.
const EDGES: [u64; 18] = [
    0,
    1,
    2,
    7,
    8,
    9,
    13,
    31,
    65,
    0xff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// Damages `bytes` once, in one of the ways that files are damaged by accident or on purpose.
pub(crate) fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        let mut samples = sample_files();
        *bytes = samples.swap_remove(random.below(samples.len())).1;
    }
    let at = random.below(bytes.len());
    let end = at + random.below(bytes.len() - at + 1).min(64);
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.bits() as u8,
        2 => overwrite(bytes, at, &EDGES[random.below(EDGES.len())].to_le_bytes()),
        3 => overwrite(
            bytes,
            at,
            &(EDGES[random.below(EDGES.len())] as u32).to_le_bytes(),
        ),
        4 => {
            let nudged = bytes[at].wrapping_add([1, 255][random.below(2)]);
            bytes[at] = nudged;
        }
        5 => bytes.truncate(at),
        6 => drop(bytes.drain(at..end)),
        _ => {
            let copy = bytes[at..end].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
    }
}

fn overwrite(bytes: &mut [u8], at: usize, number: &[u8]) {
    for (byte, new) in bytes[at..].iter_mut().zip(number) {
        *byte = *new;
    }
}

/// Parses `bytes` and asserts the claims that hold for any input.
///
/// Returns whether they parsed; nothing may panic either way.
pub(crate) fn check(bytes: &[u8]) -> Result<Header, GgufError> {
    let file = GgufFile::from_bytes(bytes);
    let header = match Header::parse(bytes) {
        Ok(header) => header,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(file.is_err(), "a file opened though its header is refused");
            return Err(error);
        }
    };
    check_tensors(&header, bytes);
    check_getters(&header.metadata);
    check_rewrite(&header);
    if let Ok(file) = file {
        for tensor in &header.tensors {
            let view = file.tensor(&tensor.name).expect("a tensor of the header");
            let start = header.data_offset + tensor.offset as usize;
            assert_eq!(
                view.bytes.to_vec().unwrap(),
                &bytes[start..start + tensor.n_bytes]
            );
        }
    }
    Ok(header)
}

fn check_tensors(header: &Header, bytes: &[u8]) {
    let mut ranges = Vec::new();
    for tensor in &header.tensors {
        let start = header.data_offset + tensor.offset as usize;
        assert!(
            start + tensor.n_bytes <= bytes.len(),
            "{tensor:?} is outside the file"
        );
        assert!(
            start.is_multiple_of(header.alignment as usize),
            "{tensor:?} is not aligned"
        );
        assert_eq!(tensor.n_elements(), tensor.row_len() * tensor.n_rows());
        assert_eq!(tensor.ty.row_bytes(tensor.n_elements()), Some(tensor.n_bytes));
        ranges.push(start..start + tensor.n_bytes);
    }
    ranges.sort_by_key(|range| range.start);
    for pair in ranges.windows(2) {
        assert!(pair[0].end <= pair[1].start, "tensors overlap");
    }
}

/// Reads every key as every type: a result must be the value, a refusal must name the key.
fn check_getters(metadata: &Metadata) {
    fn judge<T>(key: &str, is_right_type: bool, result: Result<T, GgufError>) {
        match result {
            Ok(_) => assert!(is_right_type, "`{key}` was given as a type it does not have"),
            Err(error) => assert!(error.to_string().contains(key)),
        }
    }
    for (key, value) in metadata.iter() {
        let is = |ty| value.value_type() == ty;
        let is_float = is(ValueType::F32) || is(ValueType::F64);
        let is_integer = !is_float && !is(ValueType::Bool) && !is(ValueType::String) && !is(ValueType::Array);
        judge(key, is_integer, metadata.u32(key));
        judge(key, is_integer, metadata.i32(key));
        judge(key, is_integer, metadata.u64(key));
        judge(key, is_integer, metadata.usize(key));
        judge(key, is_float, metadata.f32(key));
        judge(key, is(ValueType::Bool), metadata.bool(key));
        judge(key, is(ValueType::String), metadata.str(key));
        judge(key, is(ValueType::Array), metadata.array(key));
        judge(key, is(ValueType::Array), metadata.string_array(key));
        judge(key, is(ValueType::Array), metadata.f32_array(key));
        judge(key, is(ValueType::Array), metadata.bool_array(key));
        judge(key, is(ValueType::Array), metadata.u8_array(key));
        judge(key, is(ValueType::Array), metadata.u32_array(key));
        judge(key, is(ValueType::Array), metadata.i32_array(key));
        judge(
            key,
            is_integer || is(ValueType::Array),
            metadata.opt_u32_per_layer(key, 3),
        );
        if let Value::Array(Array::String(strings)) = value {
            assert_eq!(strings.iter().map(str::len).sum::<usize>(), strings.total_bytes());
        }
    }
}

/// Checks that a parsed header can be written, and is the same after it is written and parsed again.
fn check_rewrite(header: &Header) {
    let rewrite = |header: &Header| {
        let mut writer = GgufWriter::with_metadata(header.metadata.clone());
        writer
            .set_version(header.version)
            .expect("a version that was read");
        for tensor in &header.tensors {
            let dims: Vec<u64> = tensor.dims.iter().map(|&dim| dim as u64).collect();
            writer
                .add_tensor(&tensor.name, tensor.ty, &dims)
                .expect("a tensor that was read");
        }
        filled(writer)
    };
    // A large alignment makes a large file of a few bytes, which is slow to compare.
    if header.alignment > 1 << 16 {
        return;
    }
    let written = rewrite(header);
    let again = Header::parse(&written).expect("the writer's files parse");
    assert_eq!(again.tensors.len(), header.tensors.len());
    assert_eq!(rewrite(&again), written);
}
