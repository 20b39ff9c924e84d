//! Files on disk: split models, what opening touches, and paths that are no model at all.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use tokenmill_gguf::{GgufError, GgufFile, GgufWriter, TensorType};

/// Which part of which model to write, and the tensor it holds.
struct PartSpec {
    no: u16,
    count: u16,
    tensor: &'static str,
}

fn write_part(path: &Path, spec: &PartSpec) {
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    metadata.insert("split.no", spec.no).unwrap();
    metadata.insert("split.count", spec.count).unwrap();
    metadata
        .insert("split.tensors.count", i32::from(spec.count))
        .unwrap();
    if spec.no == 0 {
        metadata.insert("general.architecture", "llama").unwrap();
    }
    writer.add_tensor(spec.tensor, TensorType::F32, &[2]).unwrap();
    let mut out = writer.write_header(fs::File::create(path).unwrap()).unwrap();
    out.write(&[spec.no as u8; 8]).unwrap();
    out.finish().unwrap();
}

/// A model of three parts with the tensors `a`, `b` and `c`.
fn three_parts() -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (1..=3)
        .map(|no| dir.path().join(format!("m-{no:05}-of-00003.gguf")))
        .collect();
    for (no, (path, tensor)) in paths.iter().zip(["a", "b", "c"]).enumerate() {
        write_part(
            path,
            &PartSpec {
                no: no as u16,
                count: 3,
                tensor,
            },
        );
    }
    (dir, paths)
}

fn error_of(path: impl AsRef<Path>) -> GgufError {
    GgufFile::open(path).expect_err("an error was expected")
}

/// The reason a file was refused for, without its path.
fn reason_of(path: impl AsRef<Path>) -> GgufError {
    match error_of(path) {
        GgufError::InFile { reason, .. } => *reason,
        other => other,
    }
}

#[test]
fn a_split_model_opens_from_any_part() {
    let (_dir, paths) = three_parts();
    for path in &paths {
        let file = GgufFile::open(path).unwrap();
        assert_eq!(file.n_parts(), 3);
        assert_eq!(file.metadata().str("general.architecture").unwrap(), "llama");
        let listed: Vec<_> = file
            .tensors()
            .map(|tensor| (tensor.name.as_str(), tensor.part))
            .collect();
        assert_eq!(listed, [("a", 0), ("b", 1), ("c", 2)]);
        for (part, name) in ["a", "b", "c"].into_iter().enumerate() {
            assert_eq!(file.tensor(name).unwrap().bytes, [part as u8; 8]);
        }
    }
}

#[test]
fn a_missing_part_is_named() {
    let (_dir, paths) = three_parts();
    fs::remove_file(&paths[1]).unwrap();
    for path in [&paths[0], &paths[2]] {
        match error_of(path) {
            GgufError::MissingPart {
                no: 2,
                count: 3,
                path,
            } => assert_eq!(path, paths[1]),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let (dir, paths) = three_parts();
    let renamed = dir.path().join("renamed.gguf");
    fs::copy(&paths[0], &renamed).unwrap();
    assert!(matches!(
        reason_of(&renamed),
        GgufError::SplitName { no: 1, count: 3, .. }
    ));

    for (spec, expected_key) in [
        (
            PartSpec {
                no: 1,
                count: 4,
                tensor: "b",
            },
            "split.count",
        ),
        (
            PartSpec {
                no: 2,
                count: 3,
                tensor: "b",
            },
            "split.no",
        ),
    ] {
        write_part(&paths[1], &spec);
        match reason_of(&paths[0]) {
            GgufError::SplitMismatch { key, .. } => assert_eq!(key, expected_key),
            other => panic!("{other}"),
        }
    }

    let twice = PartSpec {
        no: 1,
        count: 3,
        tensor: "a",
    };
    write_part(&paths[1], &twice);
    assert!(matches!(reason_of(&paths[2]), GgufError::DuplicateTensor { name } if name == "a"));
}

#[test]
fn a_part_in_memory_is_refused() {
    let (_dir, paths) = three_parts();
    let error = GgufFile::from_bytes(&fs::read(&paths[0]).unwrap()).unwrap_err();
    assert!(
        matches!(error, GgufError::SplitInMemory { no: 1, count: 3 }),
        "{error}"
    );
}

#[test]
fn paths_that_are_no_model_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        error_of(dir.path().join("absent.gguf")),
        GgufError::Io { .. }
    ));
    assert!(matches!(error_of(dir.path()), GgufError::NotAFile { .. }));

    let mut safetensors = 64_u64.to_le_bytes().to_vec();
    safetensors.extend(br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#);
    let checks: [(&[u8], &str); 6] = [
        (&safetensors, "safetensors"),
        (b"Once upon a time", "text"),
        (b"PK\x03\x04\0\0", "zip"),
        (b"tjgg\x03\0\0\0", "before GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"\x7fELF\x02\x01", "unknown"),
    ];
    for (bytes, expected) in checks {
        let path = dir.path().join("foreign.gguf");
        fs::write(&path, bytes).unwrap();
        match reason_of(&path) {
            GgufError::NotGguf { looks_like, .. } => assert!(looks_like.contains(expected), "{looks_like}"),
            other => panic!("{expected}: {other}"),
        }
    }
    let path = dir.path().join("empty.gguf");
    fs::write(&path, b"").unwrap();
    assert!(matches!(reason_of(&path), GgufError::Empty));
}

#[test]
fn foreign_versions_are_named() {
    let header = |version: [u8; 4]| [&b"GGUF"[..], &version, &[0; 16]].concat();
    let error_of = |version| GgufFile::from_bytes(&header(version)).unwrap_err();
    assert!(matches!(
        error_of([0, 0, 0, 3]),
        GgufError::BigEndian { version: 3 }
    ));
    assert!(matches!(
        error_of([1, 0, 0, 0]),
        GgufError::UnsupportedVersion { found: 1 }
    ));
    assert!(matches!(
        error_of([0; 4]),
        GgufError::UnsupportedVersion { found: 0 }
    ));
    assert!(matches!(
        error_of([4, 0, 0, 0]),
        GgufError::UnsupportedVersion { found: 4 }
    ));
    assert_eq!(
        error_of([4, 0, 0, 0]).to_string(),
        "the file is GGUF version 4, supported are 2 and 3; it is newer than this program, update tokenmill"
    );
    assert_eq!(
        error_of([1, 0, 0, 0]).to_string(),
        "the file is GGUF version 1, supported are 2 and 3; convert the model again with a current converter"
    );
}

/// A file of 4 GiB, nearly all of it a hole.
#[cfg(target_pointer_width = "64")]
fn sparse_model(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("sparse.gguf");
    let mut writer = GgufWriter::new();
    writer
        .metadata_mut()
        .insert("general.architecture", "llama")
        .unwrap();
    writer.add_tensor("small", TensorType::F32, &[8]).unwrap();
    writer
        .add_tensor("large", TensorType::F32, &[1 << 15, 1 << 15])
        .unwrap();
    let mut out = writer.write_header(fs::File::create(&path).unwrap()).unwrap();
    out.write(&[1; 32]).unwrap();
    drop(out);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((4 << 30) + 4096).unwrap();
    path
}

/// KiB of a mapped file that are in this process's memory, as the kernel counts them.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn resident_kib(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let path = path.to_str().unwrap();
    maps.lines()
        .skip_while(|line| !line.ends_with(path))
        .find_map(|line| line.strip_prefix("Rss:"))
        .and_then(|rss| rss.trim().strip_suffix(" kB"))
        .expect("the file's map with its size")
        .trim()
        .parse()
        .unwrap()
}

#[test]
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn opening_four_gigabytes_touches_only_the_header() {
    let dir = tempfile::tempdir().unwrap();
    let path = sparse_model(&dir);
    let file = GgufFile::open(&path).unwrap();
    assert!(file.n_bytes() > 4 << 30);
    assert_eq!(file.tensor("large").unwrap().bytes.len(), 4 << 30);
    // The kernel may map neighbouring pages that it has at hand, 64 KiB by default.
    let resident = resident_kib(&path);
    assert!(resident <= 256, "{resident} KiB were read");
}

#[test]
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn released_tensors_leave_memory_and_stay_readable() {
    let dir = tempfile::tempdir().unwrap();
    let path = sparse_model(&dir);
    let file = GgufFile::open(&path).unwrap();
    file.prefetch();
    let large = file.tensor("large").unwrap();
    let n_read = 16 << 20;
    assert!(large.bytes[..n_read].iter().step_by(4096).all(|&byte| byte == 0));
    let before = resident_kib(&path);
    assert!(before >= 16 << 10, "{before} KiB");
    file.release(large.info);
    let after = resident_kib(&path);
    assert!(after <= 256, "{after} KiB are left of {before}");
    assert_eq!(file.tensor("small").unwrap().bytes, [1; 32]);
}

#[test]
fn the_writer_counts_bytes() {
    let writer = || {
        let mut writer = GgufWriter::new();
        writer.add_tensor("a", TensorType::F32, &[2]).unwrap();
        writer.write_header(Vec::new()).unwrap()
    };
    let check = |result: Result<(), GgufError>, expected: &str| {
        assert_eq!(result.unwrap_err().to_string(), expected);
    };
    check(writer().write(&[0; 9]), "tensor `a` takes 8 bytes, 9 were given");
    let mut out = writer();
    out.write(&[0; 3]).unwrap();
    check(out.finish().map(drop), "tensor `a` takes 8 bytes, 3 were given");
    let mut out = writer();
    out.write(&[0; 8]).unwrap();
    check(out.write(&[0; 1]), "1 bytes of tensor data after the last tensor");
}
