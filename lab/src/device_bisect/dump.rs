//! A recorded launch in a file: a line of JSON, then the bytes of its buffers.
//!
//! Machines return files of some MiB, so the largest buffers are omitted if all do not fit. Their length and SHA-256 are stored, so that
//! weights which are made again can be verified. Invariant: reading a file gives the launch that was written, or an error.

use std::{fs, path::Path};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokenmill_cuda_exec::{LaunchShape, RecordedArgument, RecordedBuffer, RecordedLaunch};

use crate::ptx::hex;

/// The line of JSON.
#[derive(Serialize, Deserialize)]
struct Head {
    module: String,
    kernel: String,
    grid: [u32; 3],
    threads: u32,
    dynamic_shared_bytes: u32,
    failure: Option<String>,
    arguments: Vec<Argument>,
    buffers: Vec<BufferHead>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Argument {
    Value { bits: u64 },
    Pointer { buffer: usize, offset: usize },
}

#[derive(Serialize, Deserialize)]
struct BufferHead {
    element: String,
    before: Contents,
    after: Option<Contents>,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    bytes: usize,
    is_here: bool,
    sha256: String,
}

/// Size reserved for the line of JSON.
const HEAD_BYTES: usize = 1 << 16;

/// Writes a launch into at most `most_bytes`.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn write(path: &Path, launch: &RecordedLaunch, most_bytes: usize) -> anyhow::Result<()> {
    let contents: Vec<&[u8]> = (launch.buffers.iter())
        .flat_map(|buffer| {
            [
                buffer.before.as_slice(),
                buffer.after.as_deref().unwrap_or_default(),
            ]
        })
        .collect();
    // The smallest first.
    let mut order: Vec<usize> = (0..contents.len()).collect();
    order.sort_by_key(|&index| contents[index].len());
    let mut room = most_bytes.saturating_sub(HEAD_BYTES);
    let mut is_kept = vec![false; contents.len()];
    for index in order {
        is_kept[index] = contents[index].len() <= room;
        room -= if is_kept[index] { contents[index].len() } else { 0 };
    }
    let about = |index: usize| Contents {
        bytes: contents[index].len(),
        is_here: is_kept[index],
        sha256: hex(&Sha256::digest(contents[index])),
    };
    let buffers = (launch.buffers.iter().enumerate()).map(|(index, buffer)| BufferHead {
        element: buffer.element.clone(),
        before: about(2 * index),
        after: buffer.after.is_some().then(|| about(2 * index + 1)),
    });
    let arguments = launch.arguments.iter().map(|argument| match *argument {
        RecordedArgument::Value(bits) => Argument::Value { bits },
        RecordedArgument::Pointer { buffer, offset } => Argument::Pointer { buffer, offset },
    });
    let head = serde_json::to_string(&Head {
        module: launch.module.clone(),
        kernel: launch.name.clone(),
        grid: launch.shape.grid,
        threads: launch.shape.n_threads,
        dynamic_shared_bytes: launch.shape.shared_bytes,
        failure: launch.failure.clone(),
        arguments: arguments.collect(),
        buffers: buffers.collect(),
    })?;
    let mut file = format!("{head}\n").into_bytes();
    for (bytes, _) in contents.iter().zip(&is_kept).filter(|(_, is_kept)| **is_kept) {
        file.extend_from_slice(bytes);
    }
    fs::write(path, file).with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a launch.
///
/// # Errors
/// A file that is not a dump, or one without all of its buffers.
pub(super) fn read(path: &Path) -> anyhow::Result<RecordedLaunch> {
    let file = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    launch_of(&file).with_context(|| format!("{} is no dump of a launch", path.display()))
}

fn launch_of(file: &[u8]) -> anyhow::Result<RecordedLaunch> {
    let end = file
        .iter()
        .position(|byte| *byte == b'\n')
        .context("it has no first line")?;
    let head: Head = serde_json::from_slice(&file[..end])?;
    let mut rest = &file[end + 1..];
    let mut contents = |about: &Contents| -> anyhow::Result<Vec<u8>> {
        let n_bytes = about.bytes;
        ensure!(about.is_here, "a buffer of {n_bytes} bytes was left out");
        let (bytes, behind) = rest.split_at_checked(n_bytes).context("it is cut off")?;
        rest = behind;
        Ok(bytes.to_vec())
    };
    let mut buffers = Vec::new();
    for buffer in &head.buffers {
        let before = contents(&buffer.before)?;
        let after = buffer.after.as_ref().map(&mut contents).transpose()?;
        buffers.push(RecordedBuffer::new(&buffer.element, before, after));
    }
    let arguments = head.arguments.iter().map(|argument| match *argument {
        Argument::Value { bits } => Ok(RecordedArgument::Value(bits)),
        Argument::Pointer { buffer, offset } => {
            ensure!(buffer < buffers.len(), "an argument has no buffer");
            Ok(RecordedArgument::Pointer { buffer, offset })
        }
    });
    let arguments = arguments.collect::<anyhow::Result<_>>()?;
    Ok(RecordedLaunch {
        module: head.module,
        name: head.kernel,
        shape: LaunchShape {
            grid: head.grid,
            n_threads: head.threads,
            shared_bytes: head.dynamic_shared_bytes,
        },
        arguments,
        buffers,
        failure: head.failure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch() -> RecordedLaunch {
        RecordedLaunch {
            module: "norm".to_owned(),
            name: "quantize_rows".to_owned(),
            shape: LaunchShape::new([3, 1, 1], 128).with_shared_bytes(16),
            arguments: vec![
                RecordedArgument::Pointer { buffer: 1, offset: 4 },
                RecordedArgument::Value(u64::MAX),
            ],
            buffers: vec![
                RecordedBuffer::new("f32", vec![1; 1 << 20], None),
                RecordedBuffer::new("i8", vec![10, b'\n', 3], Some(vec![4, 5, 6])),
            ],
            failure: None,
        }
    }

    #[test]
    fn a_launch_that_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("launch");
        write(&path, &launch(), 2 << 20).unwrap();
        assert_eq!(read(&path).unwrap(), launch());
    }

    #[test]
    fn a_dump_keeps_its_limit_and_says_what_it_leaves_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("launch");
        write(&path, &launch(), 1 << 20).unwrap();
        assert!(fs::metadata(&path).unwrap().len() < 1 << 20);
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(
            error.contains("a buffer of 1048576 bytes was left out"),
            "{error}"
        );
        fs::write(&path, "{}\n").unwrap();
        assert!(read(&path).is_err());
    }
}
