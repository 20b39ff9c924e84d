//! A recorded launch in a file: a line of JSON, then the bytes of its buffers.
//!
//! Machines return files of some MiB, so the largest buffers are omitted if all do not fit. Their length and SHA-256 are stored, so that
//! weights which are made again can be verified. Invariant: reading a file gives the launch that was written, or an error.

use std::{fs, path::Path};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokenmill_cuda_exec::{LaunchShape, RecordedArgument, RecordedBuffer, RecordedLaunch};

use crate::ptx::hex;

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
    let about = |index: usize| {
        json!({
            "bytes": contents[index].len(),
            "is_here": is_kept[index],
            "sha256": hex(&Sha256::digest(contents[index])),
        })
    };
    let buffers = launch.buffers.iter().enumerate().map(|(index, buffer)| {
        json!({
            "element": buffer.element,
            "before": about(2 * index),
            "after": buffer.after.is_some().then(|| about(2 * index + 1)),
        })
    });
    let arguments = launch.arguments.iter().map(|argument| match *argument {
        RecordedArgument::Value(bits) => json!({ "bits": bits }),
        RecordedArgument::Pointer { buffer, offset } => json!({ "buffer": buffer, "offset": offset }),
    });
    let head = json!({
        "module": launch.module,
        "kernel": launch.name,
        "grid": launch.shape.grid,
        "threads": launch.shape.n_threads,
        "dynamic_shared_bytes": launch.shape.shared_bytes,
        "failure": launch.failure,
        "arguments": arguments.collect::<Vec<_>>(),
        "buffers": buffers.collect::<Vec<_>>(),
    });
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
    let head: Value = serde_json::from_slice(&file[..end])?;
    let mut rest = &file[end + 1..];
    let mut contents = |about: &Value| -> anyhow::Result<Vec<u8>> {
        let n_bytes = number(&about["bytes"])? as usize;
        ensure!(
            about["is_here"] == true,
            "a buffer of {n_bytes} bytes was left out"
        );
        let (bytes, behind) = rest.split_at_checked(n_bytes).context("it is cut off")?;
        rest = behind;
        Ok(bytes.to_vec())
    };
    let mut buffers = Vec::new();
    for buffer in head["buffers"].as_array().context("it has no buffers")? {
        let element = buffer["element"].as_str().context("a buffer has no element")?;
        let before = contents(&buffer["before"])?;
        let after = match &buffer["after"] {
            Value::Null => None,
            about => Some(contents(about)?),
        };
        buffers.push(RecordedBuffer::new(element, before, after));
    }
    let mut arguments = Vec::new();
    for argument in head["arguments"].as_array().context("it has no arguments")? {
        arguments.push(if argument["buffer"].is_null() {
            RecordedArgument::Value(number(&argument["bits"])?)
        } else {
            let buffer = number(&argument["buffer"])? as usize;
            ensure!(buffer < buffers.len(), "an argument has no buffer");
            RecordedArgument::Pointer {
                buffer,
                offset: number(&argument["offset"])? as usize,
            }
        });
    }
    let text = |key: &str| head[key].as_str().map(str::to_owned);
    let count = |value: &Value| Ok::<_, anyhow::Error>(number(value)? as u32);
    let grid = &head["grid"];
    let (Some(module), Some(name)) = (text("module"), text("kernel")) else {
        bail!("it names no kernel");
    };
    Ok(RecordedLaunch {
        module,
        name,
        shape: LaunchShape {
            grid: [count(&grid[0])?, count(&grid[1])?, count(&grid[2])?],
            n_threads: count(&head["threads"])?,
            shared_bytes: count(&head["dynamic_shared_bytes"])?,
        },
        arguments,
        buffers,
        failure: text("failure"),
    })
}

fn number(value: &Value) -> anyhow::Result<u64> {
    value.as_u64().context("a number is missing")
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
