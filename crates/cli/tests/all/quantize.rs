//! `quantize`, and `--quantize` of the commands that load: the written files, the refusals, and the absence
//! of leftovers.

use std::{fs, path::Path};

use tokenmill_gguf::{GgufFile, GgufWriter, TensorType};
use tokenmill_testkit::{Comparisons, TinyModel, tiny_llama};

use crate::support::{DEMO_GGUF, arg, names, split_in_two, tokenmill};

/// A model in F32 whose rows the blocks of Q8_0 divide, and some other types' do not.
fn model(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("model.gguf");
    let model = TinyModel::random(tiny_llama(), TensorType::F32, 1);
    fs::write(&path, model.to_gguf().unwrap()).unwrap();
    path
}

#[test]
fn quantize_writes_a_file_that_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (model(folder.path()), folder.path().join("out.gguf"));
    let text = tokenmill(["quantize", arg(&input), arg(&output), "q8_0", "-t", "2"]).ok();
    assert!(
        text.starts_with(&format!("wrote {}\nQ8_0 takes ", output.display())),
        "{text}"
    );
    let file = GgufFile::open(&output).unwrap();
    assert_eq!(file.metadata().u32("general.file_type").unwrap(), 7);
    assert_eq!(
        file.tensor("blk.0.attn_q.weight").unwrap().info.ty,
        TensorType::Q8_0
    );
    assert_eq!(
        file.tensor("blk.0.attn_norm.weight").unwrap().info.ty,
        TensorType::F32
    );
    assert!(
        tokenmill(["inspect", arg(&output), "--summary"])
            .ok()
            .contains("Q8_0")
    );

    // A dry run says the same and writes nothing.
    let other = folder.path().join("other.gguf");
    let dry = tokenmill(["quantize", arg(&input), arg(&other), "q8_0", "--dry-run"]).ok();
    assert_eq!(
        dry.strip_prefix("Q8_0 would be "),
        text.lines()
            .nth(1)
            .and_then(|line| line.strip_prefix("Q8_0 takes "))
            .map(|sizes| format!("{sizes}\n"))
            .as_deref()
    );
    let given = [
        "--tensor-type",
        "ffn_down=f16",
        "--token-embedding-type",
        "bf16",
        "--pure",
    ];
    tokenmill([&["quantize", arg(&input), arg(&other), "q8_0"][..], &given].concat()).ok();
    let file = GgufFile::open(&other).unwrap();
    assert_eq!(
        file.tensor("blk.0.ffn_down.weight").unwrap().info.ty,
        TensorType::F16
    );
    assert_eq!(
        file.tensor("token_embd.weight").unwrap().info.ty,
        TensorType::BF16
    );
    assert_eq!(names(folder.path()), ["model.gguf", "other.gguf", "out.gguf"]);
}

#[test]
fn ternary_types_of_a_model_that_was_not_trained_for_them_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let [demo, small, floats, again] =
        ["demo.gguf", "small.gguf", "floats.gguf", "again.gguf"].map(|name| folder.path().join(name));
    fs::write(&demo, DEMO_GGUF).unwrap();
    let said = |from: &Path, to: &Path, ty: &str| {
        let outcome = tokenmill([
            "quantize",
            arg(from),
            arg(to),
            ty,
            "--allow-requantize",
            "--overwrite",
        ]);
        let said = outcome.stderr.clone();
        outcome.ok();
        said.contains("are not ternary, and the result will hardly be usable")
    };
    for ty in ["tq1_0", "tq2_0"] {
        assert!(said(&demo, &small, ty), "{ty}");
    }
    // Weights with three values in each block suit these types, and draw no warning.
    assert!(!said(&small, &floats, "f32"));
    for ty in ["tq1_0", "tq2_0"] {
        assert!(!said(&floats, &again, ty), "{ty}");
    }
    assert!(!said(&demo, &again, "q4_0"));
}

#[test]
fn a_split_file_stays_split_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let whole = model(folder.path());
    let parts = split_in_two(&GgufFile::open(&whole).unwrap(), folder.path(), "m");
    let output = folder.path().join("out.gguf");
    let run = |more: &[&str]| {
        let args = ["quantize", arg(&parts[1]), arg(&output), "q8_0"];
        tokenmill([&args[..], more].concat())
    };
    let text = run(&["--keep-split"]).ok();
    let kept = [1, 2].map(|no| folder.path().join(format!("out-{no:05}-of-00002.gguf")));
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(
        lines[..2],
        kept.each_ref().map(|path| format!("wrote {}", path.display())),
        "{text}"
    );
    let of_input = GgufFile::open(&parts[0]).unwrap();
    let of_parts = GgufFile::open(&kept[1]).unwrap();
    assert_eq!(of_parts.n_parts(), 2);
    for (before, after) in of_input.tensors().zip(of_parts.tensors()) {
        assert_eq!((&before.name, before.part), (&after.name, after.part));
    }
    // Without it one file comes of the parts, with the same weights.
    assert!(!output.exists());
    run(&[]).ok();
    let joined = GgufFile::open(&output).unwrap();
    assert_eq!(joined.n_parts(), 1);
    for info in joined.tensors() {
        let bytes_of = |file: &GgufFile| {
            let view = file.tensor(&info.name).unwrap();
            let mut bytes = vec![0; view.bytes.len()];
            view.bytes.read_into(0, &mut bytes).unwrap();
            (view.info.ty, bytes)
        };
        assert!(bytes_of(&joined) == bytes_of(&of_parts), "{}", info.name);
    }
    let shown = tokenmill(["inspect", arg(&kept[0]), "--summary"]).ok();
    assert!(shown.contains("Q8_0"), "{shown}");
    // The parts of the input are not written over, and of a file that is whole one comes.
    let before = fs::read(&parts[0]).unwrap();
    let over = folder.path().join("m.gguf");
    let line = tokenmill(["quantize", arg(&parts[0]), arg(&over), "q8_0", "--keep-split"]).failed(2);
    assert!(line.contains("m-00001-of-00002.gguf is the input"), "{line}");
    assert_eq!(fs::read(&parts[0]).unwrap(), before);
    tokenmill(["quantize", arg(&whole), arg(&over), "q8_0", "--keep-split"]).ok();
    assert_eq!(
        names(folder.path()),
        [
            "m-00001-of-00002.gguf",
            "m-00002-of-00002.gguf",
            "m.gguf",
            "model.gguf",
            "out-00001-of-00002.gguf",
            "out-00002-of-00002.gguf",
            "out.gguf"
        ]
    );
}

#[test]
fn an_output_that_is_there_is_replaced_only_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let whole = model(folder.path());
    let parts = split_in_two(&GgufFile::open(&whole).unwrap(), folder.path(), "m");
    let older = |name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, "older").unwrap();
        path
    };
    let (output, part) = (older("out.gguf"), older("split-00002-of-00002.gguf"));
    let split = folder.path().join("split.gguf");
    for (args, there) in [
        (&[arg(&whole), arg(&output), "q8_0"][..], &output),
        (&[arg(&parts[0]), arg(&split), "q8_0", "--keep-split"], &part),
    ] {
        let args = [&["quantize"][..], args].concat();
        let expected = format!(
            "error: {} already exists (hint: `--overwrite` replaces it; or give another name)",
            there.display()
        );
        assert_eq!(tokenmill(&args).failed(2), expected);
        assert_eq!(fs::read(there).unwrap(), b"older");
        tokenmill([&args[..], &["--dry-run"]].concat()).ok();
        tokenmill([&args[..], &["--overwrite"]].concat()).ok();
        assert!(GgufFile::open(there).is_ok());
    }
}

#[test]
fn a_type_in_the_outputs_place_is_told_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let input = model(folder.path());
    let line = tokenmill(["quantize", arg(&input), "q4_k_m", "out.gguf"]).failed(2);
    assert_eq!(
        line,
        format!(
            "error: `q4_k_m` is a type, and OUTPUT is expected in its place (hint: the type comes last: `tokenmill quantize {} out.gguf \
             q4_k_m`)",
            arg(&input)
        )
    );
    let line = tokenmill(["quantize", arg(&input), "Q4_K_M", "q8_0"]).failed(2);
    assert!(
        line.starts_with("error: `Q4_K_M` is a type, and OUTPUT is expected in its place")
            && line.contains(&format!("`tokenmill quantize {} OUTPUT Q4_K_M`", arg(&input))),
        "{line}"
    );
    // llama-quantize names the output itself.
    for ty in ["q4_0", "made/q4_0"] {
        let line = tokenmill(["quantize", "-t", "2", "S.gguf", ty]).failed(2);
        assert_eq!(
            line,
            "error: OUTPUT is missing (hint: it stands before the type: `tokenmill quantize S.gguf S-q4_0.gguf q4_0`)"
        );
    }
    assert_eq!(names(folder.path()), ["model.gguf"]);
}

#[test]
fn what_quantize_refuses_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (model(folder.path()), folder.path().join("out.gguf"));
    let refused = |more: &[&str], code: i32| {
        tokenmill([&["quantize", arg(&input), arg(&output)][..], more].concat()).failed(code)
    };
    // Rows of 256, which the blocks of few bits divide.
    let wide = folder.path().join("wide.gguf");
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    metadata.insert("general.architecture", "llama").unwrap();
    writer
        .add_tensor("blk.0.attn_q.weight", TensorType::F32, &[256, 2])
        .unwrap();
    let mut out = writer.write_header(fs::File::create(&wide).unwrap()).unwrap();
    out.write(&[0; 2048]).unwrap();
    out.finish().unwrap();
    let line = tokenmill(["quantize", arg(&wide), arg(&output), "iq2_xs"]).failed(3);
    assert!(
        line.contains("importance matrix")
            && line.ends_with("(hint: `tokenmill imatrix` makes one for `--imatrix FILE`)"),
        "{line}"
    );
    let line = refused(&["q8_0", "--imatrix", arg(&input)], 3);
    assert!(line.contains("is not an importance matrix"), "{line}");
    assert!(refused(&["q8_0", "--tensor-type", "(=q8_0"], 2).contains("is not a regular expression"));
    assert!(
        tokenmill(["quantize", arg(&input), arg(&output), "q9"])
            .stderr
            .contains("known are Q1_0")
    );
    let line = tokenmill(["quantize", arg(&input), arg(&input), "q8_0"]).failed(2);
    assert!(line.contains("is the input"), "{line}");
    let beside = folder.path().join("beside");
    fs::write(&beside, "ffn_down=q8_0 nothere=q6_K").unwrap();
    for flag in ["--imatrix", "--tensor-type-file"] {
        let line = tokenmill(["quantize", arg(&input), arg(&beside), "q8_0", flag, arg(&beside)]).failed(2);
        assert!(line.contains("is the input"), "{line}");
    }
    assert_eq!(fs::read(&beside).unwrap(), b"ffn_down=q8_0 nothere=q6_K");
    let line = refused(&["q8_0", "--tensor-type", "nothere=q6_K"], 2);
    assert!(
        line.contains("no tensor of the model has `nothere` in its name"),
        "{line}"
    );
    // Names in a file may be for several models.
    let other = folder.path().join("other.gguf");
    let given = ["q8_0", "--dry-run", "--tensor-type-file", arg(&beside)];
    let told = tokenmill([&["quantize", arg(&input), arg(&other)][..], &given].concat());
    assert!(
        told.stderr.contains("no tensor of the model has `nothere`"),
        "{}",
        told.stderr
    );
    told.ok();
    fs::remove_file(&beside).unwrap();
    let adapter = folder.path().join("adapter.gguf");
    let mut writer = GgufWriter::new();
    writer
        .metadata_mut()
        .insert("general.architecture", "llama")
        .unwrap();
    for end in ["lora_a", "lora_b"] {
        let name = format!("blk.0.attn_q.weight.{end}");
        writer.add_tensor(&name, TensorType::F32, &[64, 2]).unwrap();
    }
    let mut out = writer.write_header(fs::File::create(&adapter).unwrap()).unwrap();
    for _ in 0..2 {
        out.write(&[0; 512]).unwrap();
    }
    out.finish().unwrap();
    let line = tokenmill(["quantize", arg(&adapter), arg(&output), "q8_0"]).failed(3);
    assert!(line.contains("is an adapter"), "{line}");
    fs::remove_file(&adapter).unwrap();
    let line = tokenmill(["quantize", arg(folder.path()), arg(&output), "q8_0"]).failed(3);
    assert!(line.contains("is a folder"), "{line}");

    // A weight that is not a number, in the last tensor.
    let mut broken = TinyModel::random(tiny_llama(), TensorType::F32, 1);
    let file = GgufFile::open(&input).unwrap();
    let n = file.tensor("blk.0.ffn_up.weight").unwrap().info.n_elements();
    let mut values = vec![0.5; n];
    values[n - 1] = f32::NAN;
    broken.set("blk.0.ffn_up.weight", &values);
    let path = folder.path().join("broken.gguf");
    fs::write(&path, broken.to_gguf().unwrap()).unwrap();
    let line = tokenmill(["quantize", arg(&path), arg(&output), "q8_0"]).failed(3);
    assert!(
        line.contains("tensor `blk.0.ffn_up.weight` has NaN at row"),
        "{line}"
    );

    // Quantized weights are quantized again only where that is allowed.
    tokenmill(["quantize", arg(&input), arg(&output), "q8_0"]).ok();
    let again = folder.path().join("again.gguf");
    let line = tokenmill(["quantize", arg(&output), arg(&again), "q4_0"]).failed(3);
    assert!(
        line.contains("is quantized already, as Q8_0") && line.contains("--allow-requantize"),
        "{line}"
    );
    assert!(!line.contains("no better"), "{line}");
    tokenmill([
        "quantize",
        arg(&output),
        arg(&again),
        "q4_0",
        "--allow-requantize",
    ])
    .ok();
    let line = tokenmill(["quantize", arg(&again), arg(&output), "q8_0", "--overwrite"]).failed(3);
    assert!(
        line.contains("as Q4_0, and as Q8_0 it would be larger and no better"),
        "{line}"
    );
    for (ty, said) in [
        ("q8_0", "the result is larger than its input and no better"),
        ("q4_0", "no tensor gets another type"),
    ] {
        let args = ["quantize", arg(&again), arg(&output), ty, "--dry-run"];
        let told = tokenmill([&args[..], &["--allow-requantize"]].concat());
        assert!(told.stderr.contains(said), "{}", told.stderr);
        told.ok();
    }
    assert_eq!(
        names(folder.path()),
        ["again.gguf", "broken.gguf", "model.gguf", "out.gguf", "wide.gguf"]
    );
}

#[test]
fn a_matrix_that_was_measured_here_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    fs::write(&text, "Once upon a time there was a bear. ".repeat(20)).unwrap();
    let matrix = folder.path().join("demo.imatrix.gguf");
    let said = tokenmill([
        "imatrix",
        "demo",
        arg(&text),
        arg(&matrix),
        "-c",
        "32",
        "--chunks",
        "2",
    ])
    .ok();
    assert!(said.ends_with("measured on 2 chunks of 32 tokens\n"), "{said}");
    let matrix = tokenmill_convert::ImportanceMatrix::open(&matrix).unwrap();
    assert_eq!(matrix.n_chunks(), Some(2));
    assert!(
        matrix
            .get("blk.0.attn_q.weight")
            .is_some_and(|numbers| numbers.iter().all(|x| *x > 0.0))
    );

    // The built-in model is quantized already; a file of its shapes and of another name is told from it.
    let other = folder.path().join("other.gguf");
    let demo = GgufFile::from_bytes(DEMO_GGUF).unwrap();
    let mut metadata = tokenmill_gguf::Metadata::new();
    for (key, value) in demo.metadata().iter() {
        let value = match key {
            "general.name" => "Another".into(),
            _ => value.clone(),
        };
        metadata.insert(key, value).unwrap();
    }
    let mut writer = GgufWriter::with_metadata(metadata);
    let tensors: Vec<_> = demo.tensors().collect();
    for info in &tensors {
        let dims: Vec<u64> = info.dims.iter().map(|&dim| dim as u64).collect();
        writer.add_tensor(&info.name, info.ty, &dims).unwrap();
    }
    let mut out = writer.write_header(fs::File::create(&other).unwrap()).unwrap();
    for info in &tensors {
        let mut bytes = vec![0; info.n_bytes];
        demo.tensor(&info.name)
            .unwrap()
            .bytes
            .read_into(0, &mut bytes)
            .unwrap();
        out.write(&bytes).unwrap();
    }
    out.finish().unwrap();
    let own = folder.path().join("own.gguf");
    fs::write(&own, DEMO_GGUF).unwrap();
    for (input, is_other) in [(&own, false), (&other, true)] {
        let output = folder.path().join("never.gguf");
        let args = [
            "quantize",
            arg(input),
            arg(&output),
            "q4_0",
            "--allow-requantize",
            "--dry-run",
        ];
        let told = tokenmill([&args[..], &["--imatrix", arg(matrix.path())]].concat());
        assert_eq!(
            told.stderr.contains("was measured on another model, `"),
            is_other,
            "{}",
            told.stderr
        );
        told.ok();
    }

    // Neither part of a split model is written over by what is measured on it.
    let parts = split_in_two(&demo, folder.path(), "m");
    for over in &parts {
        let before = fs::read(over).unwrap();
        let args = [
            "imatrix",
            arg(&parts[0]),
            arg(&text),
            arg(over),
            "-c",
            "32",
            "--chunks",
            "1",
        ];
        let line = tokenmill(args).failed(2);
        assert!(line.contains("is the input"), "{line}");
        assert!(fs::read(over).unwrap() == before);
    }
    #[cfg(unix)]
    {
        // A link to a file that is not there yet stays a link.
        let [link, target] = ["link.gguf", "target.gguf"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink("target.gguf", &link).unwrap();
        let args = [
            "imatrix",
            arg(&parts[0]),
            arg(&text),
            arg(&link),
            "-c",
            "32",
            "--chunks",
            "1",
        ];
        tokenmill(args).ok();
        assert!(link.is_symlink() && target.is_file() && !target.is_symlink());
    }

    let short = folder.path().join("short.txt");
    fs::write(&short, "Once").unwrap();
    let line = tokenmill([
        "imatrix",
        "demo",
        arg(&short),
        arg(&matrix.path().with_extension("other")),
    ])
    .failed(3);
    assert!(line.contains("but a chunk has 512"), "{line}");
    let line = tokenmill([
        "imatrix",
        "demo",
        arg(&text),
        arg(matrix.path()),
        "--device",
        "cuda",
    ])
    .failed(2);
    assert!(line.contains("on the CPU only"), "{line}");
    let before = fs::read(&text).unwrap();
    let line = tokenmill(["imatrix", "demo", arg(&text), arg(&text), "-c", "32"]).failed(2);
    assert!(line.contains("is the input"), "{line}");
    assert_eq!(fs::read(&text).unwrap(), before);
}

#[test]
fn a_folder_is_quantized_while_it_loads() {
    let mut comparisons = Comparisons::of("folders quantized while they load");
    let paths = (
        comparisons.find("parity/qwen2/hf"),
        comparisons.find("parity/qwen2/model-F32.gguf"),
    );
    let (Some(folder), Some(file)) = paths else {
        return;
    };
    let run = |model: &Path, more: &[&str]| {
        let args = [
            "run",
            "--raw",
            arg(model),
            "Hello",
            "-n",
            "12",
            "--temp",
            "0",
            "-c",
            "64",
        ];
        tokenmill([&args[..], more].concat()).ok()
    };
    // The folder has the numbers of the file, so that the weights, and the text, are those of the quantized file.
    let quantized = tempfile::tempdir().unwrap();
    for preset in ["q8_0", "q4_k_m"] {
        let path = quantized.path().join(preset).with_extension("gguf");
        tokenmill(["quantize", arg(&file), arg(&path), preset]).ok();
        let expected = run(&path, &[]);
        assert_eq!(run(&folder, &["--quantize", preset]), expected, "{preset}");
        comparisons.compared(1);
    }
    let text = tokenmill(["inspect", arg(&folder), "--summary", "--quantize", "q8_0"]).ok();
    assert!(text.contains("loaded as Q8_0"), "{text}");
    let line = tokenmill(["inspect", arg(&file), "--quantize", "q8_0"]).failed(3);
    assert!(line.contains("only the weights of a folder"), "{line}");
    let line = tokenmill(["run", "--raw", "demo", "Hello", "--quantize", "q8_0"]).failed(3);
    assert!(line.contains("only the weights of a folder"), "{line}");
}

#[cfg(unix)]
#[test]
fn an_importance_matrix_goes_through_a_pipe_whole() {
    let folder = tempfile::tempdir().unwrap();
    let [text, pipe] = ["text", "pipe"].map(|name| folder.path().join(name));
    fs::write(&text, "Once upon a time there was a bear. ".repeat(60)).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo makes a pipe");
    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::read(pipe).unwrap())
    };
    tokenmill(["imatrix", "demo", arg(&text), arg(&pipe), "-c", "64"]).ok();
    let bytes = reader.join().unwrap();
    let matrix = GgufFile::from_bytes(&bytes).unwrap();
    assert_eq!(
        matrix.metadata().opt_str("general.type").unwrap(),
        Some("imatrix")
    );
}
