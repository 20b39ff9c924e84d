//! The layer that guesses further tokens, in files as the reference converter writes them: what it reads is made by hand here, in f64,
//! and goes through the same layer as rows of a network that decodes. The layers themselves are compared elsewhere.

use tokenmill_backend::{Executor, ForwardBatch, RowOutput, TokenSource};
use tokenmill_model::{
    Descriptor, LoadError, Model, ModelOptions, WeightInfo, WeightSource, WeightTensor, build,
};
use tokenmill_quant::dequantize_row;
use tokenmill_testkit::{
    Comparisons, NaiveBackend,
    generate::{ids, run},
};

/// The layer as one that decodes: without what makes its input.
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

/// The largest difference of two rows of numbers, all of which are finite.
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
    let mut comparisons = Comparisons::of("layers that guess further tokens");
    for path in ["parity2/qwen3_5_mtp", "parity2/glm4_moe_mtp"] {
        let Some(folder) = comparisons.find(path) else {
            continue;
        };
        let model = Model::open(folder.join("model-F32.gguf")).unwrap();
        let nextn = model.nextn().unwrap().expect("the file has the layer");
        let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 120).collect();
        let options = options(tokens.len());
        let mut network = model
            .load_on(NaiveBackend::default(), &options, &mut |_| {})
            .unwrap();
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
        let mut plain = build(
            &plain,
            &Plain(source),
            NaiveBackend::default(),
            &options,
            &mut |_| {},
        )
        .unwrap();
        let mut by_rows = batch_of((0..tokens.len() as u32).map(TokenSource::Row), tokens.len());
        by_rows.input_width = descriptor.n_embd;
        by_rows.input_rows = inputs(source, descriptor, &tokens, &hidden);
        let expected = run(&mut plain, &by_rows).unwrap().logits;

        let mut layer = nextn
            .load_on(NaiveBackend::default(), &options, &network, &mut |_| {})
            .unwrap();
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
}

/// The layer of a folder is that of the file which was made of it: the same tensors, and the same guesses.
#[test]
fn the_layer_of_a_folder_is_that_of_its_file() {
    let mut comparisons = Comparisons::of("layers that guess further tokens, in folders");
    for path in ["parity2/qwen3_5_mtp", "parity2/glm4_moe_mtp"] {
        let Some(folder) = comparisons.find(path) else {
            continue;
        };
        let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 120).collect();
        let options = options(tokens.len());
        let [of_file, of_folder] = [folder.join("model-F32.gguf"), folder.join("hf")].map(|path| {
            let model = Model::open(path).unwrap();
            let nextn = model.nextn().unwrap().expect("it has the layer");
            let network = model
                .load_on(NaiveBackend::default(), &options, &mut |_| {})
                .unwrap();
            let mut layer = nextn
                .load_on(NaiveBackend::default(), &options, &network, &mut |_| {})
                .unwrap();
            let mut batch = batch_of(ids(&tokens), tokens.len());
            let n_embd = nextn.descriptor().n_embd;
            batch.hidden_inputs = (0..tokens.len() * n_embd)
                .map(|at| ((at * 31) % 17) as f32 / 8.0 - 1.0)
                .collect();
            run(&mut layer, &batch).unwrap().logits
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

#[test]
fn a_file_may_count_a_layer_that_it_leaves_out() {
    let mut comparisons = Comparisons::of("models without layers that guess further tokens");
    for path in ["parity/qwen3_5", "parity/glm4_moe"] {
        let Some(folder) = comparisons.find(path) else {
            continue;
        };
        let nextn = Model::open(folder.join("model-F32.gguf")).unwrap();
        let nextn: Result<_, LoadError> = nextn.nextn().map(|found| found.is_some());
        assert!(!nextn.unwrap(), "{path}");
    }
}
