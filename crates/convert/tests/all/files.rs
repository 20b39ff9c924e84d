//! Files in and out: parts, matrices of other models, work that is stopped, disks that are full.

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use tokenmill_convert::{
    ConvertError, ImportanceMatrix, ImportanceSums, MeasuredMatrix, Preset, QuantizeProgress, Quantizer,
    Recipe,
};
use tokenmill_gguf::{GgufFile, GgufWriter, TensorType};

/// Continues to the end.
fn whole(_: QuantizeProgress<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn floats(n: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|i| (i as f32 * 0.37).sin().to_le_bytes())
        .collect()
}

/// Writes a file with some matrices of 64 columns and 8 rows, as part `part` of `n_parts`.
fn write_model(path: &Path, names: &[&str], part: u16, n_parts: u16, n_tensors: i32) {
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    if part == 0 {
        metadata.insert("general.architecture", "llama").unwrap();
        metadata.insert("general.file_type", 0_u32).unwrap();
        metadata.insert("llama.block_count", 2_u32).unwrap();
    }
    if n_parts > 1 {
        metadata.insert("split.no", part).unwrap();
        metadata.insert("split.count", n_parts).unwrap();
        metadata.insert("split.tensors.count", n_tensors).unwrap();
    }
    for name in names {
        writer.add_tensor(name, TensorType::F32, &[64, 8]).unwrap();
    }
    let mut out = writer.write_header(fs::File::create(path).unwrap()).unwrap();
    for _ in names {
        out.write(&floats(64 * 8)).unwrap();
    }
    out.finish().unwrap();
}

/// Names a matrix of such a file.
fn matrix_of(tensor: &str) -> MeasuredMatrix<'_> {
    MeasuredMatrix {
        tensor,
        n_matrices: 1,
        matrix_idx: 0,
        is_chosen: false,
        n_columns: 64,
    }
}

const NAMES: [&str; 3] = ["token_embd.weight", "blk.1.attn_q.weight", "blk.0.attn_q.weight"];

fn model(folder: &Path) -> PathBuf {
    let path = folder.join("model.gguf");
    write_model(&path, &NAMES, 0, 1, 3);
    path
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn parts_are_joined_or_kept() {
    let folder = tempfile::tempdir().unwrap();
    let part = |no: usize| folder.path().join(format!("m-{no:05}-of-00002.gguf"));
    write_model(&part(1), &NAMES[..2], 0, 2, 3);
    write_model(&part(2), &NAMES[2..], 1, 2, 3);
    let file = GgufFile::open(part(1)).unwrap();
    let quantizer = Quantizer::new(&file, Recipe::new(Preset::Q8_0)).threads(2);

    let joined = folder.path().join("joined.gguf");
    quantizer.write(&joined, &mut whole).unwrap();
    let one = GgufFile::open(&joined).unwrap();
    assert_eq!(one.n_parts(), 1);
    assert!(one.metadata().get("split.count").is_none());
    let order: Vec<&str> = one.tensors().map(|info| info.name.as_str()).collect();
    assert_eq!(
        order,
        ["token_embd.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight"]
    );

    let kept = quantizer
        .keep_split()
        .write(folder.path().join("kept.gguf"), &mut whole)
        .unwrap();
    assert_eq!(kept.paths[1], folder.path().join("kept-00002-of-00002.gguf"));
    let two = GgufFile::open(&kept.paths[0]).unwrap();
    assert_eq!(two.n_parts(), 2);
    assert_eq!(two.metadata().u32("general.file_type").unwrap(), 7);
    // The parts of the input itself, by the name that they have together, and one of them.
    let before = fs::read(part(2)).unwrap();
    let quantizer = Quantizer::new(&file, Recipe::new(Preset::Q8_0));
    let joined_onto_a_part = quantizer.write(part(2), &mut whole);
    let kept_as_before = quantizer
        .keep_split()
        .write(folder.path().join("m.gguf"), &mut whole);
    for result in [joined_onto_a_part, kept_as_before] {
        assert!(matches!(result, Err(ConvertError::SameFile { .. })), "{result:?}");
    }
    assert_eq!(fs::read(part(2)).unwrap(), before);
    for info in one.tensors() {
        let bytes_of = |file: &GgufFile| {
            let view = file.tensor(&info.name).unwrap();
            let mut bytes = vec![0; view.bytes.len()];
            view.bytes.read_into(0, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(bytes_of(&one), bytes_of(&two), "{}", info.name);
    }
}

/// llama-quantize drops trailing dimensions of 1, and writes rows that are not whole blocks as F16.
#[test]
fn shapes_that_do_not_fit_blocks_are_written_as_the_reference_writes_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    metadata.insert("general.architecture", "qwen2moe").unwrap();
    metadata.insert("qwen2moe.block_count", 1_u32).unwrap();
    let tensors: [(&str, &[u64], &[usize], TensorType); 4] = [
        ("token_embd.weight", &[64, 8], &[64, 8], TensorType::Q8_0),
        (
            "blk.0.ffn_gate_inp_shexp.weight",
            &[64, 1],
            &[64],
            TensorType::F32,
        ),
        ("blk.0.ffn_down.weight", &[48, 4], &[48, 4], TensorType::F16),
        ("blk.0.attn_norm.weight", &[1], &[1], TensorType::F32),
    ];
    for (name, dims, ..) in tensors {
        writer.add_tensor(name, TensorType::F32, dims).unwrap();
    }
    let mut out = writer.write_header(fs::File::create(&path).unwrap()).unwrap();
    for (_, dims, ..) in tensors {
        out.write(&floats(dims.iter().product::<u64>() as usize)).unwrap();
    }
    out.finish().unwrap();

    let file = GgufFile::open(&path).unwrap();
    let to = folder.path().join("to.gguf");
    let quantizer = Quantizer::new(&file, Recipe::new(Preset::Q8_0));
    quantizer.write(&to, &mut whole).unwrap();
    let written = GgufFile::open(&to).unwrap();
    for (name, _, dims, ty) in tensors {
        let info = written.tensor(name).unwrap().info;
        assert_eq!((&info.dims[..], info.ty), (dims, ty), "{name}");
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = GgufFile::open(model(folder.path())).unwrap();
    let bytes = [1, 2, 5].map(|n_threads| {
        let path = folder.path().join(format!("{n_threads}.gguf"));
        let quantizer = Quantizer::new(&file, Recipe::new(Preset::Q4_0)).threads(n_threads);
        quantizer.write(&path, &mut whole).unwrap();
        fs::read(path).unwrap()
    });
    assert!(bytes[0] == bytes[1] && bytes[0] == bytes[2]);
}

#[test]
fn stopped_work_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = GgufFile::open(model(folder.path())).unwrap();
    let quantizer = Quantizer::new(&file, Recipe::new(Preset::Q8_0));
    let mut n_calls = 0;
    let result = quantizer.write(
        folder.path().join("out.gguf"),
        &mut |progress: QuantizeProgress<'_>| {
            n_calls += 1;
            assert!(progress.n_bytes_done <= progress.n_bytes_total);
            if n_calls == 2 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    assert!(matches!(result, Err(ConvertError::Stopped)), "{result:?}");
    assert_eq!(names(folder.path()), ["model.gguf"]);
    let result = quantizer.write(folder.path().join("no/such/folder/out.gguf"), &mut whole);
    assert!(
        result.unwrap_err().to_string().starts_with("cannot write to "),
        "a missing folder"
    );
}

#[test]
fn a_matrix_of_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = GgufFile::open(model(folder.path())).unwrap();
    let path = folder.path().join("imatrix.gguf");
    let plan = |entries: &[(&str, u64)], is_partial: bool| {
        let mut writer = GgufWriter::new();
        writer.metadata_mut().insert("general.type", "imatrix").unwrap();
        for &(name, n_columns) in entries {
            writer
                .add_tensor(&format!("{name}.in_sum2"), TensorType::F32, &[n_columns, 1])
                .unwrap();
            writer
                .add_tensor(&format!("{name}.counts"), TensorType::F32, &[1, 1])
                .unwrap();
        }
        let mut out = writer.write_header(fs::File::create(&path).unwrap()).unwrap();
        for &(_, n_columns) in entries {
            out.write(&1_f32.to_le_bytes().repeat(n_columns as usize))
                .unwrap();
            out.write(&1_f32.to_le_bytes()).unwrap();
        }
        out.finish().unwrap();
        let mut matrix = ImportanceMatrix::open(&path).unwrap();
        if is_partial {
            matrix = matrix.allow_partial();
        }
        let quantizer = Quantizer::new(&file, Recipe::new(Preset::Q4_0)).importance(&matrix);
        let summary = quantizer.plan();
        summary
            .map(|summary| summary.without_importance)
            .map_err(|error| error.to_string())
    };
    let refusal = |entries: &[(&str, u64)]| plan(entries, false).unwrap_err();
    let none: [&str; 0] = [];
    let [first, second] = ["blk.0.attn_q.weight", "blk.1.attn_q.weight"];
    assert_eq!(plan(&[(first, 64), (second, 64)], false).unwrap(), none);
    let foreign = ("blk.7.attn_q.weight", 64);
    assert_eq!(
        refusal(&[foreign]),
        "the importance matrix belongs to another model: none of its 1 entries has the name of a tensor"
    );
    assert_eq!(
        refusal(&[(first, 32)]),
        "the importance matrix belongs to another model: tensor `blk.0.attn_q.weight` needs 64 numbers and has 32"
    );
    assert_eq!(
        refusal(&[(first, 64)]),
        "the importance matrix was measured on another model, or on too little text: it has nothing for any tensor of layer 1, \
         1 of 2 tensors in all"
    );
    assert_eq!(plan(&[(first, 64)], true).unwrap(), [second]);
    assert_eq!(
        refusal(&[(first, 64), (second, 64), foreign]),
        "the importance matrix was measured on another model: it has entries for 8 layers, and this model has 2"
    );
    // A layer that predicts further tokens, which the file leaves out.
    let nextn = ("blk.7.nextn.eh_proj.weight", 64);
    assert_eq!(
        plan(&[(first, 64), (second, 64), foreign, nextn], false).unwrap(),
        none
    );
}

#[test]
fn a_matrix_without_a_kind_of_tensors_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("experts.gguf");
    let of_layer = |layer_idx: usize| {
        ["attn_q", "ffn_up_exps", "ffn_down_exps"].map(|kind| format!("blk.{layer_idx}.{kind}.weight"))
    };
    // The last layer predicts further tokens, and is not computed while a matrix is measured.
    let mut names: Vec<String> = [0, 1, 2].into_iter().flat_map(of_layer).collect();
    names.push("blk.2.nextn.eh_proj.weight".to_owned());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    write_model(&path, &names, 0, 1, names.len() as i32);
    let file = GgufFile::open(&path).unwrap();
    let plan = |has_entry: &dyn Fn(&str) -> bool| {
        let mut sums = ImportanceSums::new();
        for name in names.iter().filter(|name| has_entry(name)) {
            sums.add(matrix_of(name), &[1.0; 64], 1.0);
        }
        let path = folder.path().join("imatrix.gguf");
        sums.write(&path, "text", 1, 64).unwrap();
        let matrix = ImportanceMatrix::open(&path).unwrap();
        let quantizer = Quantizer::new(&file, Recipe::new(Preset::Q4_0)).importance(&matrix);
        quantizer.plan().map_err(|error| error.to_string())
    };
    let is_decoding = |name: &str| !name.starts_with("blk.2.");
    plan(&is_decoding).unwrap();
    // Experts of one layer without a token are not a reason.
    plan(&|name| is_decoding(name) && name != "blk.1.ffn_up_exps.weight").unwrap();
    let refusal = plan(&|name| is_decoding(name) && !name.contains("_exps")).unwrap_err();
    assert_eq!(
        refusal,
        "the importance matrix was measured on another model, or on too little text: it has nothing for any \
         `ffn_down_exps.weight` or `ffn_up_exps.weight`, 4 of 6 tensors in all"
    );
    // Tensors that the model does not have were measured on another model.
    let path = folder.path().join("foreign.gguf");
    let mut sums = ImportanceSums::new();
    let foreign = [
        "blk.0.ffn_gate.weight",
        "blk.1.ssm_in.weight",
        "blk.1.attn_kv_b.weight",
    ];
    for name in (names.iter().copied().filter(|name| is_decoding(name))).chain(foreign) {
        sums.add(matrix_of(name), &[1.0; 64], 1.0);
    }
    sums.write(&path, "text", 1, 64).unwrap();
    let matrix = ImportanceMatrix::open(&path).unwrap();
    let plan = |matrix: &ImportanceMatrix| {
        let quantizer = Quantizer::new(&file, Recipe::new(Preset::Q4_0)).importance(matrix);
        quantizer.plan().map_err(|error| error.to_string())
    };
    assert_eq!(
        plan(&matrix).unwrap_err(),
        "the importance matrix was measured on another model: it has entries for `ffn_gate.weight` and `ssm_in.weight`, and this \
         model has no such tensors"
    );
    plan(&matrix.allow_partial()).unwrap();
}
