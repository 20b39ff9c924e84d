//! Every fault of a file, one by one: each is refused with the error that names it.
//!
//! The bytes are assembled by hand, because the writer refuses to make such files.

use tokenmill_gguf::{GgufError, GgufFile, Header};

/// Returns a metadata entry: key, value type, and the bytes of the value.
fn entry(key: &[u8], ty: u32, value: &[u8]) -> Vec<u8> {
    [
        &(key.len() as u64).to_le_bytes()[..],
        key,
        &ty.to_le_bytes(),
        value,
    ]
    .concat()
}

/// Returns the value of an array: element type, length, and the bytes of the elements.
fn array(ty: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &len.to_le_bytes(), elements].concat()
}

/// Returns the description of a tensor.
fn tensor(name: &[u8], dims: &[u64], ty: u32, offset: u64) -> Vec<u8> {
    let dims_bytes: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
    [
        &(name.len() as u64).to_le_bytes()[..],
        name,
        &(dims.len() as u32).to_le_bytes(),
        &dims_bytes,
        &ty.to_le_bytes(),
        &offset.to_le_bytes(),
    ]
    .concat()
}

/// Returns a file of version 3 with 256 bytes of tensor data.
fn file(entries: &[Vec<u8>], tensors: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((entries.len() as u64).to_le_bytes());
    bytes.extend(entries.concat());
    bytes.extend(tensors.concat());
    bytes.resize(bytes.len().next_multiple_of(32) + 256, 0);
    bytes
}

/// Checks the message for which a file with this entry is refused.
fn check_entry(entry: Vec<u8>, expected: &str) {
    check_message(&file(&[entry], &[]), expected);
}

/// Checks the message for which a file with these tensors is refused.
fn check_tensors(tensors: &[Vec<u8>], expected: &str) {
    check_message(&file(&[], tensors), expected);
}

fn check_message(bytes: &[u8], expected: &str) {
    assert_eq!(Header::parse(bytes).unwrap_err().to_string(), expected);
    assert!(GgufFile::from_bytes(bytes).is_err());
}

#[test]
fn the_hand_made_files_are_otherwise_sound() {
    let tensors = [tensor(b"a", &[8], 0, 0), tensor(b"b", &[8], 0, 32)];
    let header = Header::parse(&file(&[entry(b"k", 7, &[1])], &tensors)).unwrap();
    assert_eq!(header.tensors.len(), 2);
    assert!(header.metadata.bool("k").unwrap());
}

#[test]
fn wrong_metadata_is_refused() {
    check_entry(
        entry(b"k", 7, &[2]),
        "metadata key `k` is a boolean of value 2, expected 0 or 1",
    );
    check_entry(
        entry(b"k", 9, &array(7, 2, &[1, 255])),
        "metadata key `k` is a boolean of value 255, expected 0 or 1",
    );
    check_entry(
        entry(b"k", 13, &[0; 8]),
        "metadata key `k` has the unknown value type 13",
    );
    check_entry(
        entry(b"k", 9, &array(9, 1, &[0; 16])),
        "metadata key `k` is an array of arrays, which the format does not allow",
    );
    check_entry(
        entry(&vec![b'k'; 65_536], 0, &[1]),
        "a metadata key of 65536 bytes is longer than the 65535 allowed",
    );
    check_entry(
        entry(b"k\xff", 0, &[1]),
        "a metadata key at offset 32 is not valid UTF-8",
    );
    check_entry(
        entry(
            b"k",
            9,
            &array(8, 1, &[&1_u64.to_le_bytes()[..], b"\x80"].concat()),
        ),
        "a string of a metadata array at offset 57 is not valid UTF-8",
    );
    check_message(
        &file(&[entry(b"k", 0, &[1]), entry(b"k", 0, &[1])], &[]),
        "metadata key `k` occurs twice",
    );
    check_message(
        &file(&[entry(b"k", 0, &[1]), entry(b"", 0, &[1])], &[]),
        "metadata entry 1 has an empty key",
    );
}

#[test]
fn counts_are_compared_with_the_bytes_left() {
    check_entry(
        entry(b"k", 9, &array(12, 1 << 61, &[])),
        "the file promises 2305843009213693952 numbers in a metadata array, but has only 271 bytes left for them",
    );
    check_entry(
        entry(b"k", 9, &array(0, 272, &[])),
        "the file promises 272 numbers in a metadata array, but has only 271 bytes left for them",
    );
    check_entry(
        entry(b"k", 9, &array(8, 34, &[])),
        "the file promises 34 strings in a metadata array, but has only 271 bytes left for them",
    );
}

#[test]
fn unusable_alignments_are_refused() {
    for found in [0_u32, 1, 4, 24, 1 << 25] {
        check_entry(
            entry(b"general.alignment", 4, &found.to_le_bytes()),
            &format!("`general.alignment` is {found}, expected a power of two from 8 to 16777216"),
        );
    }
    check_entry(
        entry(b"general.alignment", 10, &32_u64.to_le_bytes()),
        "metadata key `general.alignment` has type u64, expected u32",
    );
}

#[test]
fn impossible_tensors_are_refused() {
    check_tensors(&[tensor(b"", &[8], 0, 0)], "tensor 0 has an empty name");
    check_tensors(
        &[tensor(b"a", &[8, 0], 0, 0)],
        "tensor `a` has the impossible dimensions [8, 0]",
    );
    check_tensors(
        &[tensor(b"a", &[0], 0, 0)],
        "tensor `a` has the impossible dimensions [0]",
    );
    // 2^63 elements of a bit or so each are few enough bytes to address, and too many elements to count.
    check_tensors(
        &[tensor(b"a", &[1 << 32, 1 << 31], 41, 0)],
        "tensor `a` has the impossible dimensions [4294967296, 2147483648]",
    );
    check_tensors(
        &[tensor(b"a", &[33], 8, 0)],
        "tensor `a` has rows of 33 elements, not a multiple of the 32 in a block of Q8_0",
    );
    check_tensors(
        &[tensor(b"a", &[8], 43, 0)],
        "tensor `a` has the unknown type id 43; the file may need a newer version of this program",
    );
    for (id, name) in [
        (4, "Q4_2"),
        (5, "Q4_3"),
        (31, "Q4_0_4_4"),
        (32, "Q4_0_4_8"),
        (33, "Q4_0_8_8"),
        (36, "IQ4_NL_4_4"),
        (37, "IQ4_NL_4_8"),
        (38, "IQ4_NL_8_8"),
    ] {
        check_tensors(
            &[tensor(b"a", &[32], id, 0)],
            &format!(
                "tensor `a` has type {name} (id {id}), which the format dropped; quantize the model again"
            ),
        );
    }
}

#[test]
fn misplaced_tensors_are_refused() {
    check_tensors(
        &[tensor(b"a", &[8], 0, 16)],
        "tensor `a` starts at offset 16, which is not a multiple of the alignment 32",
    );
    let of_64_bytes = |name: &[u8], offset| tensor(name, &[16], 0, offset);
    check_tensors(
        &[of_64_bytes(b"b", 32), of_64_bytes(b"a", 0)],
        "tensors `a` and `b` overlap",
    );
    check_tensors(
        &[of_64_bytes(b"a", 0), of_64_bytes(b"b", 0)],
        "tensors `a` and `b` overlap",
    );
    check_tensors(
        &[of_64_bytes(b"a", 224)],
        "tensor `a` takes 64 bytes at offset 224 of the data section at 64, but the file has 320 bytes; it may be \
         truncated, fetch it again",
    );
}

#[test]
fn a_header_without_end_is_refused_before_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.gguf");
    let n_bytes = 1_u64 << 30;
    let mut bytes = file(&[entry(b"k", 8, &n_bytes.to_le_bytes())], &[]);
    bytes.truncate(64);
    std::fs::write(&path, &bytes).unwrap();
    let sparse = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    sparse.set_len(n_bytes + 4096).unwrap();
    match GgufFile::open(&path).unwrap_err() {
        GgufError::InFile { reason, .. } => {
            assert_eq!(reason.to_string(), "the header is longer than 268435456 bytes");
        }
        other => panic!("{other}"),
    }
}
