//! Files on disk: split models, the bytes that opening reads, and paths that are not models.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use tokenmill_gguf::{GgufError, GgufFile, GgufWriter, RegularFile, TensorType};

/// A part of a model to write, and its tensor.
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

/// Returns a model of three parts with the tensors `a`, `b` and `c`.
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

/// Returns the reason for which a file was refused, without its path.
fn reason_of(path: impl AsRef<Path>) -> GgufError {
    match error_of(path) {
        GgufError::InFile { reason, .. } => *reason,
        other => other,
    }
}

#[test]
fn a_writer_knows_how_large_its_file_will_be() {
    for lens in [&[][..], &[1], &[8], &[3, 8, 5]] {
        for alignment in [32_u32, 64] {
            let mut writer = GgufWriter::new();
            let metadata = writer.metadata_mut();
            metadata.insert("general.architecture", "llama").unwrap();
            metadata.insert("general.alignment", alignment).unwrap();
            for (no, &len) in lens.iter().enumerate() {
                writer
                    .add_tensor(&format!("t{no}"), TensorType::F32, &[len])
                    .unwrap();
            }
            let expected = writer.n_file_bytes().unwrap();
            let mut out = writer.write_header(Vec::new()).unwrap();
            for &len in lens {
                out.write(&vec![0; 4 * len as usize]).unwrap();
            }
            assert_eq!(
                out.finish().unwrap().len() as u64,
                expected,
                "{lens:?}, {alignment}"
            );
        }
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
            assert_eq!(
                file.tensor(name).unwrap().bytes.to_vec().unwrap(),
                [part as u8; 8]
            );
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
    assert_eq!(
        error_of(dir.path()).to_string(),
        format!(
            "cannot open {}: it is a folder, expected a file",
            dir.path().display()
        )
    );

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

/// Returns a file of 4 GiB, nearly all of it a hole.
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

#[test]
#[cfg(target_pointer_width = "64")]
fn a_tensor_of_four_gigabytes_is_read_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let file = GgufFile::open(sparse_model(&dir)).unwrap();
    assert!(file.n_bytes() > 4 << 30);
    let large = file.tensor("large").unwrap().bytes;
    assert_eq!(large.len(), 4 << 30);
    assert_eq!(large.as_slice(), None);
    let mut buffer = Vec::new();
    assert_eq!(
        large.read(large.len() - 3..large.len(), &mut buffer).unwrap(),
        [0; 3]
    );
    let small = file.tensor("small").unwrap().bytes;
    assert_eq!(small.read(4..8, &mut buffer).unwrap(), [1; 4]);
    assert_eq!(buffer.len(), 4);
}

#[test]
#[expect(unsafe_code, reason = "the test owns the file that it maps")]
fn a_mapped_file_gives_slices() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("one.gguf");
    write_part(
        &path,
        &PartSpec {
            no: 0,
            count: 1,
            tensor: "a",
        },
    );
    // SAFETY: the file is in a folder of this test, which does not change it.
    let file = unsafe { GgufFile::map(&path) }.unwrap();
    let bytes = file.tensor("a").unwrap().bytes;
    assert_eq!(bytes.as_slice(), Some(&[0; 8][..]));
    assert_eq!(bytes.to_vec().unwrap(), [0; 8]);
}

#[test]
fn a_file_cut_after_it_was_opened_is_an_error_of_the_read() {
    let (_dir, paths) = three_parts();
    let file = GgufFile::open(&paths[0]).unwrap();
    let n_bytes = fs::metadata(&paths[1]).unwrap().len();
    let cut = fs::OpenOptions::new().write(true).open(&paths[1]).unwrap();
    cut.set_len(n_bytes - 32).unwrap();
    let error = file.tensor("b").unwrap().bytes.to_vec().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} was opened with {n_bytes} bytes and has become shorter; leave the file alone while it is read",
            paths[1].display()
        )
    );
    assert_eq!(file.tensor("c").unwrap().bytes.to_vec().unwrap(), [2; 8]);
}

/// Makes a pipe, which blocks a reader until somebody writes.
#[cfg(unix)]
fn make_pipe(path: &Path) {
    let status = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(status.success());
}

#[test]
#[cfg(unix)]
fn pipes_and_devices_are_refused_without_waiting() {
    const REFUSAL: &str = "it is a pipe, a device or a socket, expected a regular file";
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe.gguf");
    make_pipe(&pipe);
    for path in [pipe.as_path(), Path::new("/dev/zero")] {
        assert_eq!(
            error_of(path).to_string(),
            format!("cannot open {}: {REFUSAL}", path.display())
        );
        assert_eq!(
            RegularFile::read(path, usize::MAX).unwrap_err().to_string(),
            REFUSAL
        );
    }
}

/// A downloaded folder must not make a program show other files of its user.
#[test]
#[cfg(unix)]
fn links_are_followed_inside_the_folder_and_into_the_cache_of_the_hub() {
    use std::os::unix::fs::symlink;

    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("models--a--b/snapshots/0123");
    let blobs = dir.path().join("models--a--b/blobs");
    fs::create_dir_all(folder.join("below")).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join("4567"), "blob").unwrap();
    fs::write(folder.join("below/text"), "text").unwrap();
    fs::write(dir.path().join("secret"), "secret").unwrap();
    symlink("../../blobs/4567", folder.join("config.json")).unwrap();
    symlink("below/text", folder.join("inside")).unwrap();
    symlink("../../../secret", folder.join("chat_template.jinja")).unwrap();
    let read = |name: &str| RegularFile::read_in_folder(&folder, name, 100);
    assert_eq!(read("config.json").unwrap(), b"blob");
    assert_eq!(read("inside").unwrap(), b"text");
    let secret = dir.path().canonicalize().unwrap().join("secret");
    assert_eq!(
        read("chat_template.jinja").unwrap_err().to_string(),
        format!(
            "it is a link to {}, outside the model's folder; put the file itself there",
            secret.display()
        )
    );
    assert_eq!(read("absent").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    // The same link into `blobs` from a folder that is not a snapshot.
    let plain = dir.path().join("plain");
    fs::create_dir(&plain).unwrap();
    symlink("../models--a--b/blobs/4567", plain.join("config.json")).unwrap();
    assert!(RegularFile::read_in_folder(&plain, "config.json", 100).is_err());
}

#[test]
fn a_whole_file_is_read_up_to_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("four");
    fs::write(&path, "four").unwrap();
    assert_eq!(RegularFile::read(&path, 4).unwrap(), b"four");
    assert_eq!(
        RegularFile::read(&path, 3).unwrap_err().to_string(),
        "it has 4 bytes, at most 3 are read"
    );
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
