//! The layer that drafts further tokens, in files as the reference converter writes them: its inputs are computed here, in f64, and go
//! through the same layer as rows of a decoding network. Other tests compare the layers themselves.

use std::{fs::File, path::Path};

use tokenmill_backend::{Executor, ForwardBatch, RowOutput, TokenSource};
use tokenmill_gguf::{GgufFile, GgufWriter, Metadata, TensorType};
use tokenmill_model::{
    Descriptor, LoadError, MixerDescriptor, Model, ModelOptions, Nextn, NextnFile, WeightInfo, WeightSource,
    WeightTensor,
};
use tokenmill_quant::dequantize_row;
use tokenmill_testkit::{
    Comparisons, NaiveBackend, Random, engines,
    generate::{ids, run},
};

/// The layer as a decoding network, without the part that computes its input.
struct Plain<'a>(&'a dyn WeightSource);

impl WeightSource for Plain<'_> {
    fn infos(&self) -> Vec<WeightInfo> {
        let infos = self.0.infos().into_iter();
        infos.filter(|info| !info.name.starts_with("nextn.")).collect()
    }

    fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>> {
        self.0.tensor(name)
    }
}

fn values(source: &dyn WeightSource, name: &str) -> Vec<f64> {
    let tensor = source.tensor(name).unwrap();
    let mut values = vec![0.0; tensor.dims.iter().product()];
    let mut buffer = Vec::new();
    let bytes = tensor.bytes.read(0..tensor.bytes.len(), &mut buffer).unwrap();
    dequantize_row(tensor.ty, bytes, &mut values).unwrap();
    values.into_iter().map(f64::from).collect()
}

fn normed(row: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    let factor = 1.0 / (mean + eps).sqrt();
    row.iter().zip(weight).map(|(x, w)| x * factor * w).collect()
}

/// `W [norm(embedding), norm(hidden of the token before)]` of each token.
fn inputs(source: &dyn WeightSource, descriptor: &Descriptor, tokens: &[u32], hidden: &[f32]) -> Vec<f32> {
    let n_embd = descriptor.n_embd;
    let eps = f64::from(descriptor.norm.eps);
    let table = values(source, "token_embd.weight");
    let [of_embedding, of_hidden, matrix] =
        ["enorm", "hnorm", "eh_proj"].map(|part| values(source, &format!("nextn.{part}.weight")));
    let mut rows = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        let embedding = &table[token as usize * n_embd..][..n_embd];
        let before: Vec<f64> = match position {
            0 => vec![0.0; n_embd],
            _ => (hidden[(position - 1) * n_embd..][..n_embd]
                .iter()
                .copied()
                .map(f64::from))
            .collect(),
        };
        let joined = [
            normed(embedding, &of_embedding, eps),
            normed(&before, &of_hidden, eps),
        ]
        .concat();
        for row in matrix.chunks_exact(2 * n_embd) {
            let sum: f64 = row.iter().zip(&joined).map(|(w, x)| w * x).sum();
            rows.push(sum as f32);
        }
    }
    rows
}

fn batch_of(tokens: impl IntoIterator<Item = TokenSource>, n_tokens: usize) -> ForwardBatch {
    let mut batch = ForwardBatch::default();
    let pages: Vec<u32> = (0..n_tokens.div_ceil(16) as u32).collect();
    batch.push_sequence(tokens, 0, &pages);
    batch.logit_rows.extend(0..n_tokens as u32);
    batch.outputs.resize(n_tokens, RowOutput::Logits);
    batch
}

fn options(n_tokens: usize) -> ModelOptions {
    ModelOptions {
        n_ctx: Some(64),
        max_logit_rows: n_tokens,
        ..ModelOptions::default()
    }
}

/// Returns the largest difference of two rows of finite numbers.
fn furthest(a: &[f32], b: &[f32]) -> f32 {
    assert!(a.iter().chain(b).all(|x| x.is_finite()), "a guess is no number");
    (a.iter().zip(b)).fold(0.0_f32, |max, (a, b)| max.max((a - b).abs()))
}

#[test]
#[should_panic(expected = "a guess is no number")]
fn what_is_no_number_is_not_the_same() {
    furthest(&[1.0, f32::NAN], &[1.0, f32::NAN]);
}

#[test]
fn the_layer_reads_the_embedding_and_the_state_before() {
    let mut comparisons = Comparisons::of("MTP layers");
    for path in ["parity2/qwen3_5_mtp", "parity2/glm4_moe_mtp"] {
        let Some(folder) = comparisons.find(path) else {
            continue;
        };
        check_layer(path, &Model::open(folder.join("model-F32.gguf")).unwrap());
    }
}

/// Compares the drafts of a model's layer with its results for inputs computed here.
fn check_layer(path: &str, model: &Model) {
    let nextn = model.nextn().unwrap().expect("the file has the layer");
    let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 120).collect();
    let options = options(tokens.len());
    let mut network = engines::load(model, NaiveBackend::new(), &options).unwrap();
    let mut batch = ForwardBatch::default();
    batch.push_sequence(ids(&tokens), 0, &[0, 1, 2]);
    if network.limits().n_states > 0 {
        batch.states.push(tokenmill_backend::SeqState::own(0));
    }
    batch.hidden_rows.extend(0..tokens.len() as u32);
    let hidden = run(&mut network, &batch).unwrap().hidden;

    let (source, descriptor) = (nextn.weights(), nextn.descriptor());
    let plain = Descriptor {
        reads_hidden: false,
        ..descriptor.clone()
    };
    let mut plain = engines::build(&plain, &Plain(source), NaiveBackend::new(), &options).unwrap();
    let mut by_rows = batch_of((0..tokens.len() as u32).map(TokenSource::Row), tokens.len());
    by_rows.input_width = descriptor.n_embd;
    by_rows.input_rows = inputs(source, descriptor, &tokens, &hidden);
    let expected = run(&mut plain, &by_rows).unwrap().logits;

    let mut layer = engines::guesser(&nextn, &options, &*network).unwrap();
    assert!(layer.reads_hidden() && !network.reads_hidden());
    let mut batch = batch_of(ids(&tokens), tokens.len());
    assert!(
        run(&mut layer, &batch).is_err(),
        "it takes no token without a state"
    );
    let n_embd = descriptor.n_embd;
    batch.hidden_inputs = vec![0.0; n_embd];
    batch
        .hidden_inputs
        .extend_from_slice(&hidden[..(tokens.len() - 1) * n_embd]);
    let found = run(&mut layer, &batch).unwrap().logits;
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let furthest = furthest(&found, &expected);
    eprintln!("{path}: {furthest:e} of {scale}");
    assert!(
        scale > 0.01 && furthest < 1e-4 * scale,
        "{path}: {furthest} of {scale}"
    );
}

/// Returns the logits of a layer's drafts, from states that are the same each time.
fn guesses_of(nextn: &Nextn<'_>, model: &Model) -> Vec<f32> {
    let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 120).collect();
    let options = options(tokens.len());
    let network = engines::load(model, NaiveBackend::new(), &options).unwrap();
    let mut layer = engines::guesser(nextn, &options, &*network).unwrap();
    let mut batch = batch_of(ids(&tokens), tokens.len());
    let n_embd = nextn.descriptor().n_embd;
    batch.hidden_inputs = (0..tokens.len() * n_embd)
        .map(|at| ((at * 31) % 17) as f32 / 8.0 - 1.0)
        .collect();
    run(&mut layer, &batch).unwrap().logits
}

/// The layer of a folder equals that of the file converted from it: the same tensors, and the same drafts.
#[test]
fn the_layer_of_a_folder_is_that_of_its_file() {
    let mut comparisons = Comparisons::of("MTP layers, in folders");
    for path in ["parity2/qwen3_5_mtp", "parity2/glm4_moe_mtp"] {
        let Some(folder) = comparisons.find(path) else {
            continue;
        };
        let [of_file, of_folder] = [folder.join("model-F32.gguf"), folder.join("hf")].map(|path| {
            let model = Model::open(path).unwrap();
            guesses_of(&model.nextn().unwrap().expect("it has the layer"), &model)
        });
        let scale = of_file.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let furthest = furthest(&of_file, &of_folder);
        eprintln!("{path}: {furthest:e} of {scale}");
        assert_eq!(of_file.len(), of_folder.len());
        assert!(
            scale > 0.01 && furthest < 1e-4 * scale,
            "{path}: {furthest} of {scale}"
        );
    }
}

/// A tensor as it is written.
type Written = (String, TensorType, Vec<u64>, Vec<u8>);

fn tensors_of(file: &GgufFile) -> Vec<Written> {
    let tensors = file.tensors().map(|info| {
        let view = file.tensor(&info.name).unwrap();
        let mut bytes = Vec::new();
        let bytes = view.bytes.read(0..view.bytes.len(), &mut bytes).unwrap().to_vec();
        let dims = info.dims.iter().map(|&dim| dim as u64).collect();
        (info.name.clone(), info.ty, dims, bytes)
    });
    tensors.collect()
}

fn write(path: &Path, metadata: &Metadata, tensors: &[Written]) {
    let mut writer = GgufWriter::with_metadata(metadata.clone());
    for (name, ty, dims, _) in tensors {
        writer.add_tensor(name, *ty, dims).unwrap();
    }
    let mut out = writer.write_header(File::create(path).unwrap()).unwrap();
    for (.., bytes) in tensors {
        out.write(bytes).unwrap();
    }
    out.finish().unwrap();
}

/// Writes only the first layer after a model's last `n_layers`, as the reference converter does: with the model's metadata, and a second
/// copy of the tensors outside the layers.
fn write_alone(path: &Path, file: &GgufFile, n_layers: usize) {
    let start = format!("blk.{n_layers}.");
    let mut tensors = tensors_of(file);
    tensors.retain(|(name, ..)| name.starts_with(&start) || !name.starts_with("blk."));
    write(path, file.metadata(), &tensors);
}

/// Wherever the layer is stored, and whatever is next to it, it drafts the same: to the bit next to the model's file.
#[test]
fn a_layer_in_a_file_of_its_own_guesses_as_one_in_the_models() {
    let mut comparisons = Comparisons::of("MTP layers, in files of their own");
    let target = tempfile::tempdir().unwrap();
    for path in ["parity2/qwen3_5_mtp", "parity2/glm4_moe_mtp"] {
        let Some(folder) = comparisons.find(path) else {
            continue;
        };
        let model = Model::open(folder.join("model-F32.gguf")).unwrap();
        let alone = target.path().join("mtp-model-F32.gguf");
        write_alone(&alone, model.gguf().unwrap(), model.descriptor().layers.len());
        let file = NextnFile::open(&alone).unwrap();
        let inside = guesses_of(&model.nextn().unwrap().unwrap(), &model);
        assert_eq!(
            guesses_of(&file.layer_for(&model).unwrap(), &model),
            inside,
            "{path}"
        );
        let of_folder = Model::open(folder.join("hf")).unwrap();
        let found = guesses_of(&file.layer_for(&of_folder).unwrap(), &of_folder);
        let scale = inside.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let furthest = furthest(&found, &inside);
        assert!(furthest < 1e-4 * scale, "{path}: {furthest} of {scale}");
    }
}

/// DeepSeek's layer has latent attention, experts, and an embedding and a head of its own. No fixture has one, so it is made of the last
/// layer and random numbers.
#[test]
fn a_layer_with_latent_attention_and_experts_guesses() {
    let mut comparisons = Comparisons::of("MTP layers, latent attention");
    let Some(folder) = comparisons.find("parity/deepseek_v3") else {
        return;
    };
    let target = tempfile::tempdir().unwrap();
    let base = GgufFile::open(folder.join("model-F32.gguf")).unwrap();
    let n_layers = base.metadata().usize("deepseek2.block_count").unwrap();
    let n_embd = base.metadata().usize("deepseek2.embedding_length").unwrap();
    let mut metadata = Metadata::new();
    for (key, value) in base.metadata().iter() {
        let value = if key == "deepseek2.block_count" {
            (n_layers as u32 + 1).into()
        } else {
            value.clone()
        };
        metadata.insert(key, value).unwrap();
    }
    metadata.insert("deepseek2.nextn_predict_layers", 1_u32).unwrap();
    let mut random = Random::new(5);
    let last = format!("blk.{}.", n_layers - 1);
    let own = |part: &str| format!("blk.{n_layers}.{part}");
    for has_own_matrices in [false, true] {
        let mut tensors = tensors_of(&base);
        let copies: Vec<Written> = (tensors.iter())
            .filter_map(|(name, ty, dims, bytes)| {
                let part = match name.as_str() {
                    "token_embd.weight" if has_own_matrices => "nextn.embed_tokens.weight",
                    "output.weight" if has_own_matrices => "nextn.shared_head_head.weight",
                    "output_norm.weight" => "nextn.shared_head_norm.weight",
                    name => name.strip_prefix(&last)?,
                };
                Some((own(part), *ty, dims.clone(), bytes.clone()))
            })
            .collect();
        tensors.extend(copies);
        for (part, rows) in [("enorm", 1), ("hnorm", 1), ("eh_proj", 2 * n_embd)] {
            let values = random.values(rows * n_embd);
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let dims = if rows == 1 {
                vec![n_embd]
            } else {
                vec![rows, n_embd]
            };
            let dims = dims.into_iter().map(|dim| dim as u64).collect();
            tensors.push((own(&format!("nextn.{part}.weight")), TensorType::F32, dims, bytes));
        }
        let path = target.path().join("with-layer.gguf");
        write(&path, &metadata, &tensors);
        let model = Model::open(&path).unwrap();
        let nextn = model.nextn().unwrap().expect("it has the layer");
        let layer = &nextn.descriptor().layers[0];
        assert!(matches!(layer.mixer, MixerDescriptor::Latent(_)) && layer.ffn.moe().is_some());
        check_layer("latent attention", &model);
        if !has_own_matrices {
            let options = options(8);
            let network = engines::load(&model, NaiveBackend::new(), &options).unwrap();
            let refused = nextn.load_on(engines::cpu(1), &options, network.network(), &mut |_| {});
            let refused = refused
                .err()
                .expect("the network is on another backend")
                .to_string();
            assert!(refused.contains("matrices of another network"), "{refused}");
        }
        let alone = target.path().join("mtp-with-layer.gguf");
        write_alone(&alone, model.gguf().unwrap(), n_layers);
        let file = NextnFile::open(&alone).unwrap();
        let without = Model::from_gguf(GgufFile::open(folder.join("model-F32.gguf")).unwrap()).unwrap();
        assert_eq!(
            guesses_of(&file.layer_for(&without).unwrap(), &without),
            guesses_of(&nextn, &model)
        );
    }
}

#[test]
fn a_file_may_count_a_layer_that_it_leaves_out() {
    let mut comparisons = Comparisons::of("models without MTP layers");
    for path in ["parity/qwen3_5", "parity/glm4_moe"] {
        let Some(folder) = comparisons.find(path) else {
            continue;
        };
        let nextn = Model::open(folder.join("model-F32.gguf")).unwrap();
        let nextn: Result<_, LoadError> = nextn.nextn().map(|found| found.is_some());
        assert!(!nextn.unwrap(), "{path}");
    }
}
