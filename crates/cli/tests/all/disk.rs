//! Disks without room, and programs that write one name at once: a line that says so, and nothing that looks whole and is not.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_testkit::{SmallDisk, TinyModel, tiny_llama};

use crate::support::{Outcome, arg, command, names, split_in_two, tokenmill};

/// A model in F32, larger than what a program under [`with_small_files`] may write in any type.
fn model(folder: &Path) -> PathBuf {
    let path = folder.join("model.gguf");
    let model = TinyModel::random(tiny_llama(), TensorType::F32, 1);
    fs::write(&path, model.to_gguf().unwrap()).unwrap();
    path
}

/// A folder of safetensors.
fn hugging_face() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/parity/qwen2/hf")
}

fn text(folder: &Path) -> PathBuf {
    let path = folder.join("text.txt");
    fs::write(&path, "Once upon a time there was a bear. ".repeat(40)).unwrap();
    path
}

/// Runs the program with room for some kilobytes in each file, which stands for a disk that fills up while the program writes.
fn with_small_files(args: &[&str]) -> Outcome {
    let limited = "trap '' XFSZ; ulimit -f 4; exec \"$@\"";
    let program = command(args);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", limited, "sh"])
        .arg(program.get_program())
        .args(program.get_args())
        .stdin(Stdio::null());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    Outcome::of(&shell.output().expect("there is a shell"))
}

/// The command lines that write a file, without the file; each with the place of the file among the arguments.
fn writers(folder: &Path) -> Vec<(Vec<String>, usize)> {
    let (model, hf, text) = (model(folder), hugging_face(), text(folder));
    let chunks = ["-c", "64", "--chunks", "2"];
    let line = |args: &[&str], place: usize| (args.iter().map(|&arg| arg.to_owned()).collect(), place);
    vec![
        line(&["quantize", arg(&model), "q8_0", "--overwrite"], 2),
        line(&["convert", arg(&hf), "--overwrite"], 2),
        line(
            &[&["imatrix", "demo", arg(&text), "--overwrite"], &chunks[..]].concat(),
            3,
        ),
        line(
            &[&["perplexity", "demo", arg(&text), "--save-logits"], &chunks[..]].concat(),
            4,
        ),
    ]
}

#[test]
fn a_disk_that_fills_up_is_one_line_and_leaves_the_older_file() {
    let folder = tempfile::tempdir().unwrap();
    let writers = writers(folder.path());
    for (args, place) in &writers {
        for older in [None, Some(b"older")] {
            let own = tempfile::tempdir().unwrap();
            let output = own.path().join("out.gguf");
            if let Some(older) = older {
                fs::write(&output, older).unwrap();
            }
            let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
            args.insert(*place, arg(&output));
            let line = with_small_files(&args).failed(4);
            assert_eq!(
                line,
                format!(
                    "error: cannot write to {}: File too large (hint: make room, or write to another disk)",
                    output.display()
                ),
                "{args:?}"
            );
            let expected: &[&str] = if older.is_some() { &["out.gguf"] } else { &[] };
            assert_eq!(names(own.path()), expected, "{args:?}");
            assert_eq!(fs::read(&output).ok().as_deref(), older.map(|older| &older[..]));
        }
        // `/dev/full` has no room at all, and is not a file to be put aside.
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.insert(*place, "/dev/full");
        let line = tokenmill(&args).failed(4);
        assert!(
            line.starts_with("error: cannot write to /dev/full: No space left on device"),
            "{line}"
        );
    }
}

#[test]
fn a_disk_that_is_too_small_is_told_before_the_work() {
    const DISK_BYTES: u64 = 32 << 10;
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(DISK_BYTES) else {
        return;
    };
    // No weight is a number, which is an error as soon as the first is read.
    let broken = folder.path().join("broken.gguf");
    let mut network = TinyModel::random(tiny_llama(), TensorType::F32, 1);
    let file = GgufFile::open(model(folder.path())).unwrap();
    for info in file.tensors() {
        network.set(&info.name, &vec![f32::NAN; info.n_elements()]);
    }
    fs::write(&broken, network.to_gguf().unwrap()).unwrap();
    let parts = split_in_two(&file, folder.path(), "m");
    let (hf, text) = (hugging_face(), text(folder.path()));
    let output = disk.path().join("out.gguf");
    let older = [7; 100];
    fs::write(&output, older).unwrap();
    for args in [
        &["quantize", arg(&broken), arg(&output), "q8_0", "--overwrite"][..],
        &["quantize", arg(&parts[0]), arg(&output), "q8_0", "--keep-split"],
        &["convert", arg(&hf), arg(&output), "--type", "f32", "--overwrite"],
        &[
            "perplexity",
            "demo",
            arg(&text),
            "--save-logits",
            arg(&output),
            "-c",
            "64",
        ],
        &[
            "imatrix",
            "demo",
            arg(&text),
            arg(&output),
            "-c",
            "64",
            "--overwrite",
        ],
    ] {
        let outcome = tokenmill(args);
        assert_eq!(
            (outcome.code, &*outcome.stdout),
            (4, ""),
            "{args:?} {}",
            outcome.stderr
        );
        let line = outcome.stderr.lines().last().unwrap_or_default();
        let room = format!("error: {} has room for 28.0 KiB, and ", disk.path().display());
        assert!(
            line.starts_with(&room)
                && line.contains(" are needed, ")
                && line.ends_with(" more (hint: make room, or write to another disk)"),
            "{line}"
        );
        assert_eq!(names(disk.path()), ["out.gguf"], "{args:?}");
        assert_eq!(fs::read(&output).unwrap(), older);
    }
    // To the byte: a disk that holds just the file takes it.
    let smaller = folder.path().join("smaller.gguf");
    tokenmill([
        "quantize",
        arg(&folder.path().join("model.gguf")),
        arg(&smaller),
        "q8_0",
    ])
    .ok();
    let n_bytes = fs::metadata(&smaller).unwrap().len();
    let Some(fitting) = SmallDisk::mount(n_bytes.next_multiple_of(4096)) else {
        return;
    };
    let output = fitting.path().join("out.gguf");
    tokenmill([
        "quantize",
        arg(&folder.path().join("model.gguf")),
        arg(&output),
        "q8_0",
    ])
    .ok();
    assert!(fs::read(&output).unwrap() == fs::read(&smaller).unwrap());
}

#[test]
fn programs_that_write_one_name_at_once_leave_one_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let input = model(folder.path());
    let types = ["q8_0", "f16", "q8_0", "bf16"];
    let expected = types.map(|ty| {
        let path = folder.path().join(format!("{ty}.gguf"));
        tokenmill(["quantize", arg(&input), arg(&path), ty, "--overwrite"]).ok();
        fs::read(path).unwrap()
    });
    let own = tempfile::tempdir().unwrap();
    let output = own.path().join("out.gguf");
    for _ in 0..5 {
        let running = types.map(|ty| {
            let mut program = command(["quantize", arg(&input), arg(&output), ty, "--overwrite"]);
            program.stdout(Stdio::piped()).stderr(Stdio::piped());
            program.spawn().expect("the program starts")
        });
        for program in running {
            Outcome::of(&program.wait_with_output().unwrap()).ok();
        }
        assert_eq!(names(own.path()), ["out.gguf"]);
        assert!(
            expected.contains(&fs::read(&output).unwrap()),
            "the file is none of those that were written"
        );
    }
}
