//! `synth`: writes a model with the shapes of a real one, random weights and a vocabulary of real size.
//!
//! It allows measurements of speed, memory and loading on any machine, without a download. The parts: `preset` has the shapes, `tensors` the
//! resulting tensors, `recipe` their types, `weights` the random numbers, `vocab` the tokenizer. Invariant: the file depends only on preset,
//! type, seed and standard deviation, byte for byte, whatever the number of threads.

pub(crate) mod outline;
mod preset;
mod recipe;
mod tensors;
mod vocab;
pub(crate) mod weights;

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, bail, ensure};
use rayon::prelude::*;
use tokenmill_gguf::{GgufWriter, Metadata, TensorDataWriter, TensorType};

use preset::{Architecture, Preset};
use recipe::Recipe;
use tensors::TensorKind;

const DEFAULT_SEED: u64 = 42;
const DEFAULT_STD: f32 = 0.02;

/// Writes a model of real shapes with random weights and a generated vocabulary
#[derive(clap::Args)]
pub struct Args {
    /// Model with the shapes to take: qwen2.5-0.5b, qwen3-0.6b, llama-3.2-1b, llama-3-8b, qwen3.5-2b, qwen3-30b-a3b-8l, gpt-oss-20b-6l,
    /// gemma-3-4b, tiny-llama, tiny-qwen2, tiny-qwen3.5, tiny-qwen3-moe, tiny-gpt-oss, tiny-gemma-3
    preset: String,
    /// Type of the weights: F32, F16, BF16, Q8_0, Q4_0, Q4_K_M, Q6_K, MXFP4_MOE, ...
    recipe: String,
    /// File to write
    out: PathBuf,
    /// Seed of the random weights
    #[arg(long, default_value_t = DEFAULT_SEED)]
    seed: u64,
    /// Standard deviation of the weights
    #[arg(long, default_value_t = DEFAULT_STD)]
    std: f32,
}

impl Args {
    /// Returns the default weights of a preset in a type, for another command that needs the model.
    pub(crate) fn new(preset: &str, recipe: &str, out: &Path) -> Self {
        Self {
            preset: preset.to_owned(),
            recipe: recipe.to_owned(),
            out: out.to_owned(),
            seed: DEFAULT_SEED,
            std: DEFAULT_STD,
        }
    }
}

/// Bytes of weights that are made before they are written.
const PIECE_BYTES: usize = 64 << 20;
/// Bytes of weights that one task makes.
const TASK_BYTES: usize = 1 << 20;

/// Writes the model and prints a summary.
///
/// # Errors
/// An unknown preset or type, or a file that cannot be written; an incomplete file is removed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (preset, recipe) = (Preset::find(&args.preset)?, Recipe::find(&args.recipe)?);
    ensure!(
        args.std.is_finite() && args.std > 0.0,
        "the standard deviation must be positive, not {}",
        args.std
    );
    let started = Instant::now();
    let partial = partial_path(&args.out)?;
    let written = write_random(&partial, preset, recipe, args.seed, args.std)
        .and_then(|summary| {
            fs::rename(&partial, &args.out)
                .with_context(|| format!("cannot write {}", args.out.display()))?;
            Ok(summary)
        })
        .inspect_err(|_| drop(fs::remove_file(&partial)))?;
    println!(
        "{}: {} tensors, {:.1} M parameters, {:.1} MB of weights, {:.1} s",
        args.out.display(),
        written.tensors,
        written.elements as f64 / 1e6,
        written.weight_bytes as f64 / 1e6,
        started.elapsed().as_secs_f64(),
    );
    Ok(())
}

/// Returns the name of a file until it is complete.
fn partial_path(out: &Path) -> anyhow::Result<PathBuf> {
    let Some(name) = out.file_name() else {
        bail!("{} is not the path of a file", out.display());
    };
    let mut name = name.to_owned();
    name.push(".partial");
    Ok(out.with_file_name(name))
}

/// Totals of the written data.
struct Summary {
    tensors: usize,
    elements: usize,
    weight_bytes: usize,
}

fn write_random(
    path: &Path,
    preset: &Preset,
    recipe: &Recipe,
    seed: u64,
    std: f32,
) -> anyhow::Result<Summary> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut piece = Vec::new();
    write_model(file, preset, recipe, seed, std, |out, stream| {
        write_weights(out, &mut piece, stream, std)
    })
}

/// Writes a model, whose weights `write_weights` writes; all other tensors are random.
fn write_model<W: Write>(
    file: W,
    preset: &Preset,
    recipe: &Recipe,
    seed: u64,
    std: f32,
    mut write_weights: impl FnMut(&mut TensorDataWriter<W>, weights::Stream) -> anyhow::Result<()>,
) -> anyhow::Result<Summary> {
    let mut writer = GgufWriter::with_metadata(metadata_of(preset, recipe, seed)?);
    let tensors = preset.tensors();
    for tensor in &tensors {
        let ty = match tensor.kind {
            TensorKind::Weight => recipe.type_of(preset, &tensor.name, tensor.dims[0]),
            _ => TensorType::F32,
        };
        writer.add_tensor(&tensor.name, ty, &tensor.dims)?;
    }
    let summary = Summary {
        tensors: writer.tensors().len(),
        elements: writer
            .tensors()
            .iter()
            .map(tokenmill_gguf::TensorInfo::n_elements)
            .sum(),
        weight_bytes: writer.tensors().iter().map(|tensor| tensor.n_bytes).sum(),
    };
    let mut out = writer.write_header(file)?;
    for (tensor, tensor_idx) in tensors.iter().zip(0_u64..) {
        let stream = weights::Stream::new(seed, tensor_idx);
        match tensor.kind {
            TensorKind::Weight => write_weights(&mut out, stream)?,
            TensorKind::Small => out.write(&weights::floats(stream, tensor.n_elements(), 0.0, std))?,
            TensorKind::Norm => out.write(&weights::floats(stream, tensor.n_elements(), 1.0, std))?,
            TensorKind::Decay => out.write(&weights::floats(stream, tensor.n_elements(), -1.0, std))?,
            TensorKind::RopeFactors => out.write(&preset.rope_factors())?,
        }
    }
    out.finish()?;
    Ok(summary)
}

/// Makes the next tensor in pieces, each by all threads, and writes them.
fn write_weights(
    out: &mut TensorDataWriter<File>,
    piece: &mut Vec<u8>,
    stream: weights::Stream,
    std: f32,
) -> anyhow::Result<()> {
    let tensor = out.due().context("no tensor is due")?;
    let (ty, n_bytes) = (tensor.ty, tensor.n_bytes);
    let blocks =
        weights::RandomBlocks::new(ty, std).with_context(|| format!("no random weights for {ty}"))?;
    let task_blocks = (TASK_BYTES / ty.block_bytes()).max(1);
    let task_bytes = task_blocks * ty.block_bytes();
    let piece_bytes = PIECE_BYTES / task_bytes * task_bytes;
    let mut n_written = 0;
    while n_written < n_bytes {
        piece.resize(piece_bytes.min(n_bytes - n_written), 0);
        let first_block = n_written / ty.block_bytes();
        piece
            .par_chunks_mut(task_bytes)
            .enumerate()
            .for_each(|(task_idx, bytes)| {
                blocks.fill(stream, first_block + task_idx * task_blocks, bytes);
            });
        out.write(piece)?;
        n_written += piece.len();
    }
    Ok(())
}

fn metadata_of(preset: &Preset, recipe: &Recipe, seed: u64) -> anyhow::Result<Metadata> {
    let mut metadata = Metadata::new();
    let arch = preset.architecture.name();
    metadata.insert("general.architecture", arch)?;
    metadata.insert("general.name", format!("synthetic {} (seed {seed})", preset.name))?;
    metadata.insert("general.file_type", recipe.file_type)?;
    if recipe.is_quantized() {
        metadata.insert("general.quantization_version", 2_u32)?;
    }
    for (key, number) in [
        ("block_count", preset.n_layers),
        ("context_length", preset.n_ctx),
        ("embedding_length", preset.n_embd),
        ("feed_forward_length", preset.n_ff),
        ("attention.head_count", preset.n_heads),
        ("attention.head_count_kv", preset.n_kv_heads),
    ] {
        metadata.insert(format!("{arch}.{key}"), number)?;
    }
    if preset.architecture != Architecture::Qwen2 {
        metadata.insert(format!("{arch}.attention.key_length"), preset.head_dim)?;
        metadata.insert(format!("{arch}.attention.value_length"), preset.head_dim)?;
    }
    if preset.architecture == Architecture::Llama {
        metadata.insert("llama.vocab_size", preset.n_vocab)?;
        metadata.insert("llama.rope.dimension_count", preset.head_dim)?;
    }
    insert_architecture(&mut metadata, preset)?;
    metadata.insert(format!("{arch}.rope.freq_base"), preset.rope_base)?;
    metadata.insert(
        format!("{arch}.attention.layer_norm_rms_epsilon"),
        preset.rms_epsilon,
    )?;
    vocab::insert(&mut metadata, preset.architecture, preset.n_vocab)?;
    Ok(metadata)
}

/// Inserts the keys that only some networks have.
fn insert_architecture(metadata: &mut Metadata, preset: &Preset) -> anyhow::Result<()> {
    let arch = preset.architecture.name();
    if let Some(experts) = preset.experts {
        metadata.insert(format!("{arch}.expert_count"), experts.total)?;
        metadata.insert(format!("{arch}.expert_used_count"), experts.used)?;
        metadata.insert(format!("{arch}.expert_feed_forward_length"), experts.n_ff)?;
    }
    if let Some(window) = preset.window {
        metadata.insert(format!("{arch}.attention.sliding_window"), window)?;
    }
    if let Some(delta_net) = preset.delta_net {
        let inner_size = delta_net.n_v_heads * delta_net.head_dim;
        for (key, number) in [
            ("full_attention_interval", Preset::ATTENTION_INTERVAL),
            ("ssm.conv_kernel", delta_net.n_taps),
            ("ssm.state_size", delta_net.head_dim),
            ("ssm.group_count", delta_net.n_k_heads),
            ("ssm.time_step_rank", delta_net.n_v_heads),
            ("ssm.inner_size", inner_size),
            ("rope.dimension_count", preset.head_dim / 4),
        ] {
            metadata.insert(format!("{arch}.{key}"), number)?;
        }
        // The rotated pairs are divided among the coordinates of an image; text has the same position in all
        // of them.
        let n_pairs = (preset.head_dim / 8) as i32;
        let sections = vec![n_pairs - 2 * (n_pairs / 3), n_pairs / 3, n_pairs / 3, 0];
        metadata.insert(format!("{arch}.rope.dimension_sections"), sections)?;
    }
    match preset.architecture {
        Architecture::GptOss => {
            metadata.insert(format!("{arch}.rope.scaling.type"), "yarn")?;
            metadata.insert(format!("{arch}.rope.scaling.factor"), 32.0_f32)?;
            metadata.insert(format!("{arch}.rope.scaling.original_context_length"), 4096_u32)?;
        }
        Architecture::Gemma3 => {
            metadata.insert(format!("{arch}.rope.scaling.type"), "linear")?;
            metadata.insert(format!("{arch}.rope.scaling.factor"), 8.0_f32)?;
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::KvType;
    use tokenmill_cpu_exec::CpuBackend;
    use tokenmill_gguf::GgufFile;
    use tokenmill_model::{Model, ModelOptions, WindowPages};
    use tokenmill_quant::CpuFeatures;
    use tokenmill_testkit::generate;

    use super::*;

    fn write(preset: &str, recipe: &str, seed: u64) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.gguf");
        let preset = Preset::find(preset).unwrap();
        let recipe = Recipe::find(recipe).unwrap();
        write_random(&path, preset, recipe, seed, 0.02).unwrap();
        fs::read(path).unwrap()
    }

    #[test]
    fn every_type_makes_a_file_that_opens() {
        for recipe in recipe::RECIPES {
            for preset in ["tiny-llama", "tiny-qwen2"] {
                let file = GgufFile::from_bytes(&write(preset, recipe.name, 1)).unwrap();
                let metadata = file.metadata();
                let arch = metadata.str("general.architecture").unwrap();
                assert_eq!(metadata.u32(&format!("{arch}.block_count")).unwrap(), 2);
                let n_vocab = metadata.string_array("tokenizer.ggml.tokens").unwrap().len();
                assert_eq!(file.tensor("token_embd.weight").unwrap().info.n_rows(), n_vocab);
            }
        }
    }

    #[test]
    fn every_kind_of_network_computes_finite_logits() {
        for (preset, recipe) in [
            ("tiny-llama", "Q4_K_M"),
            ("tiny-qwen3.5", "Q4_K_M"),
            ("tiny-qwen3-moe", "Q4_K_M"),
            ("tiny-gpt-oss", "MXFP4_MOE"),
            ("tiny-gemma-3", "Q4_0"),
        ] {
            let model = Model::from_gguf(GgufFile::from_bytes(&write(preset, recipe, 3)).unwrap()).unwrap();
            let backend = CpuBackend::new(Some(1), CpuFeatures::detect()).unwrap();
            let options = ModelOptions {
                n_ctx: Some(64),
                max_logit_rows: 64,
                kv_type: KvType::F32,
                ..ModelOptions::default()
            };
            let mut executor = model.load_on(backend, &options, &mut |_| {}).unwrap();
            let tokens: Vec<u32> = (0..50).map(|token| token * 7 % 300).collect();
            let logits = generate::all_logits(&mut executor, &tokens).unwrap();
            let rows: Vec<&[f32]> = logits.chunks_exact(2048).collect();
            assert!(logits.iter().all(|logit| logit.is_finite()), "{preset}");
            assert!(rows.len() == 50 && rows[48] != rows[49], "{preset}");
        }
    }

    #[test]
    fn a_long_context_costs_keys_and_values_of_layers_without_a_window_only() {
        let file = write("tiny-gemma-3", "Q8_0", 3);
        let model = Model::from_gguf(GgufFile::from_bytes(&file).unwrap()).unwrap();
        let backend = CpuBackend::new(Some(1), CpuFeatures::detect()).unwrap();
        let plan = |n_ctx| {
            let options = ModelOptions {
                n_ctx: Some(n_ctx),
                max_batch_tokens: 64,
                max_batch_seqs: 1,
                window_pages: WindowPages::Own,
                ..ModelOptions::default()
            };
            model.plan(&backend, &options).unwrap()
        };
        let (short, long) = (plan(4096), plan(32_768));
        // One layer of six sees everything; each has 2 heads of 64 for keys and for values, in half precision.
        let page_bytes = 2 * 64 * 2 * 2 * 16;
        assert_eq!(
            (long.kv_page_bytes, long.window_page_bytes),
            (page_bytes, 5 * page_bytes)
        );
        assert_eq!((long.n_pages, short.n_pages), (2048, 256));
        // A window of 32 tokens and two pages, as much again for the cache, and two steps of 64 tokens.
        assert_eq!((long.n_window_pages, short.n_window_pages), (16, 16));
        assert_eq!(long.kv_bytes - short.kv_bytes, (2048 - 256) * page_bytes);
    }

    #[test]
    fn a_seed_makes_the_same_file_with_any_number_of_threads() {
        let file = write("tiny-llama", "Q4_K_M", 7);
        let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert!(one_thread.install(|| write("tiny-llama", "Q4_K_M", 7)) == file);
        assert!(write("tiny-llama", "Q4_K_M", 8) != file);
    }
}
