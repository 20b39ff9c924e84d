//! `imatrix`: which weights matter most, measured on a text, for `quantize --imatrix`.
//!
//! The text is cut into chunks of the context's length, each computed separately. Source: `imatrix` in
//! llama.cpp, `tools/imatrix`.

use std::path::{Path, PathBuf};

use tokenmill::{Device, LoadOptions, convert::ImportanceRun, load::ModelSource};
use tokenmill_gguf::GgufFile;
use tokenmill_text::EncodeOptions;

use crate::{
    failure::Failure,
    input::read_text,
    interrupt,
    load::{LoadArgs, about_cut_context},
    note::note,
    numbers::{Limit, counted},
    output::{self, OverwriteArgs},
    progress,
};

/// Context where nothing else is said, as in llama.cpp.
const DEFAULT_CTX: usize = 512;

/// Rows of logits computed at a time; each takes four bytes for each token of the vocabulary.
const MAX_LOGIT_ROWS: usize = 64;

/// Measure on a text which weights of a model matter most.
#[derive(clap::Args)]
#[command(mut_arg("ctx_size", |arg| arg.help("Tokens of a chunk, each computed by itself [default: 512]")))]
#[command(after_help = "Examples:\n  \
    tokenmill imatrix model-f16.gguf calibration.txt model.imatrix.gguf\n  \
    tokenmill imatrix model-f16.gguf calibration.txt model.imatrix.gguf -c 256 --chunks 200\n  \
    tokenmill quantize model-f16.gguf model-iq3_xs.gguf iq3_xs --imatrix model.imatrix.gguf\n\n\
    The text should resemble the texts that the model will read and write; about 100,000 tokens are enough.\n\
    Embedding models (encoders) are measured in the same way.\n\
    The file has the format of llama-imatrix, and llama-quantize takes it, too.")]
pub(crate) struct Args {
    /// A GGUF file, best in F32, BF16 or F16, a Hugging Face folder, OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    model: PathBuf,
    /// The text
    file: PathBuf,
    /// The importance matrix to write, a GGUF file
    output: PathBuf,
    /// Chunks to compute; -1 takes all
    #[arg(long, value_name = "N", default_value_t = Limit::Unbounded)]
    chunks: Limit,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    interrupt::ends_at_once()?;
    if let Device::Cuda { .. } = args.load.device()? {
        return Err(Failure::usage("an importance matrix is measured on the CPU only")
            .hint("leave out --device, -ngl and the flags that split a model"));
    }
    let text = read_text(&args.file)?;
    let path = args.load.fetch.resolve(&args.model)?;
    output::refuse_input(&args.output, &[&path, &args.file])?;
    let source = ModelSource::find(&path)?;
    let choices = args.load.options()?;
    let network = choices.open_network(&source)?;
    let parts: Vec<&Path> = network.gguf().into_iter().flat_map(GgufFile::paths).collect();
    output::refuse_input(&args.output, &parts)?;
    output::refuse_options(&args.output, &choices)?;
    args.overwrite.check(&args.output)?;
    output::check_writable(&args.output)?;
    let is_encoder = network.descriptor().is_encoder();
    let tokenizer = source.tokenizer(network.gguf())?;
    let n_ctx = match args.load.n_ctx_given() {
        None | Some(0) => DEFAULT_CTX,
        Some(n_ctx) => n_ctx,
    };
    // An encoder was made for texts of this length, each in one piece.
    let n_ctx_most = if is_encoder {
        network.descriptor().n_ctx_train
    } else {
        usize::MAX
    };
    if let Some(text) = about_cut_context(args.load.n_ctx_given(), n_ctx_most) {
        note!("{text}");
    }
    let n_ctx = n_ctx.min(n_ctx_most);
    // The tokens around an encoder's texts.
    let frame = tokenizer.encode("", EncodeOptions::default());
    let ids = tokenizer.encode(&text, EncodeOptions::default());
    let n_chunks_max = ids.len() / n_ctx;
    let n_chunks = args.chunks.bound().map_or(n_chunks_max, |n| n.min(n_chunks_max));
    if n_chunks_max == 0 {
        return Err(Failure::input(format!(
            "the text has {} tokens, but a chunk has {n_ctx}",
            ids.len()
        ))
        .hint("give a longer text, or shorter chunks with -c"));
    }
    if n_chunks == 0 {
        return Err(Failure::usage("`--chunks 0` leaves nothing to measure"));
    }
    let options = LoadOptions {
        n_ctx: Some(n_ctx),
        max_logit_rows: Some(MAX_LOGIT_ROWS),
        ..choices
    };
    let mut run = ImportanceRun::open(&path, &options)?;
    let bar = progress::steps("measuring", n_chunks as u64);
    let dataset = args.file.to_string_lossy();
    for (chunk_idx, chunk) in ids.chunks_exact(n_ctx).take(n_chunks).enumerate() {
        let mut chunk = chunk.to_vec();
        if let (true, [first, last]) = (is_encoder && n_ctx > 2, &frame[..]) {
            (chunk[0], chunk[n_ctx - 1]) = (*first, *last);
        } else if let (true, Some(bos)) = (tokenizer.adds_bos(), tokenizer.bos()) {
            chunk[0] = bos;
        }
        run.add(chunk)?;
        if chunk_idx == 0 {
            // The sums have their final size now, so a full disk is reported before the long part of the
            // work.
            (run.sums()).check_room(&args.output, &dataset, n_chunks as u32, n_ctx as u32)?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let sums = run.sums();
    if let Some(tensor) = sums.not_finite() {
        return Err(
            Failure::work(format!("the input of tensor `{tensor}` is not finite"))
                .hint("the file's weights may be damaged; fetch the file again"),
        );
    }
    sums.write(&args.output, &dataset, n_chunks as u32, n_ctx as u32)?;
    output::print_sentence(&format!(
        "wrote {}: {}, measured on {} of {n_ctx} tokens",
        args.output.display(),
        counted(sums.n_entries(), "tensor"),
        counted(n_chunks, "chunk")
    ))
}
