//! `perplexity`: how surprised a model is by a text, computed as llama.cpp computes it.
//!
//! The text is cut into chunks of the context's length. Each chunk begins with the token that begins a sequence, in
//! place of its own first; its second half is scored. Source: `perplexity` in llama.cpp, `tools/perplexity`.

mod base;
pub(crate) mod divergence;

use std::path::{Path, PathBuf};

use serde_json::json;
use tokenmill::{LoadOptions, Model, load::ModelSource};
use tokenmill_backend::AdapterId;
use tokenmill_gguf::GgufFile;
use tokenmill_sched::{Event, ForwardParams, ForwardRows};
use tokenmill_text::EncodeOptions;

use crate::{
    adapters::AdapterArgs,
    failure::Failure,
    input::read_text,
    interrupt,
    load::{LoadArgs, load_opened},
    numbers::{Limit, counted},
    output, progress,
};

use base::{Header, Reader, Writer};
use divergence::Divergence;

/// Rows of logits computed at a time; each takes four bytes for each token of the vocabulary.
const MAX_LOGIT_ROWS: usize = 64;
/// Context where nothing else is said, as in llama.cpp.
const DEFAULT_CTX: usize = 512;

/// Shortest chunk in which llama.cpp's rule scores a token after some context.
const MIN_CTX: usize = 4;

/// Measure how well a model predicts a text.
#[derive(clap::Args)]
#[command(mut_arg("ctx_size", |arg| arg.help(
    "Tokens of a chunk, each scored by itself; 0 takes the model's training context [default: 512]"
)))]
#[command(
    override_usage = "tokenmill perplexity [OPTIONS] <MODEL> <FILE>\n       \
        tokenmill perplexity [OPTIONS] <MODEL> --kl-base <FILE>",
    after_help = "Examples:\n  \
    tokenmill perplexity demo book.txt\n  \
    tokenmill perplexity model.gguf wiki.test.raw -c 512 --chunks 64 --json\n  \
    tokenmill perplexity model-f16.gguf wiki.test.raw --chunks 64 --save-logits base.logits\n  \
    tokenmill perplexity model-q4_k_m.gguf --kl-base base.logits\n\n\
    The result is comparable to that of llama.cpp's perplexity for the same -c and --chunks, and files of logits have its format\n\
    (--kl-divergence-base): 2 bytes for each token of the vocabulary and each scored position."
)]
pub(crate) struct Args {
    /// A GGUF file, a folder with one, a Hugging Face folder, OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    model: PathBuf,
    /// The text; not with --kl-base, whose file has the tokens
    #[arg(required_unless_present = "kl_base", conflicts_with = "kl_base")]
    file: Option<PathBuf>,
    /// Write the logits to a file, as a base for other files of the model
    #[arg(long, value_name = "FILE")]
    save_logits: Option<PathBuf>,
    /// Compare with the logits in a file: Kullback-Leibler divergence, and how often the likeliest token is the same
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save_logits", "ctx_size"])]
    kl_base: Option<PathBuf>,
    /// Chunks to score; -1 scores all
    #[arg(long, value_name = "N", default_value_t = Limit::Unbounded)]
    chunks: Limit,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    interrupt::ends_at_once()?;
    let source = ModelSource::find(args.load.fetch.resolve(&args.model)?)?;
    if let Some(path) = &args.save_logits {
        output::refuse_input(path, &[source.path()])?;
        output::refuse_input(path, args.file.as_slice())?;
        output::check_writable(path)?;
    }
    let base = args.kl_base.as_deref().map(Reader::open).transpose()?;
    let text = match &args.file {
        Some(file) => read_text(file)?,
        None => String::new(),
    };
    let adapter = args.adapters.only()?;
    let mut choices = args.load.options()?;
    args.adapters.add_to(&mut choices);
    let network = choices.open_network(&source)?;
    if network.descriptor().is_encoder() {
        return Err(
            Failure::input("this model is an encoder: it predicts no tokens and has no perplexity")
                .hint("`tokenmill compare A B TEXT` compares two files of such a model by their vectors"),
        );
    }
    if let Some(path) = &args.save_logits {
        let parts: Vec<&Path> = network.gguf().into_iter().flat_map(GgufFile::paths).collect();
        output::refuse_input(path, &parts)?;
        output::refuse_options(path, &choices)?;
    }
    let tokenizer = source.tokenizer(network.gguf())?;
    let n_vocab = network.descriptor().n_vocab;
    let n_ctx = match (&base, args.load.n_ctx_given()) {
        (Some(base), _) => base.header.n_ctx,
        (None, None) => DEFAULT_CTX,
        (None, Some(0)) => network.descriptor().n_ctx_train,
        (None, Some(n_ctx)) => n_ctx,
    };
    let ids = match &base {
        Some(base) if base.header.n_vocab == n_vocab => base.header.tokens.clone(),
        Some(base) => {
            return Err(Failure::input(format!(
                "the logits are of a vocabulary of {}, and the model has {n_vocab} tokens",
                base.header.n_vocab
            ))
            .hint("compare files of one model"));
        }
        None => tokenizer.encode(&text, EncodeOptions::default()),
    };
    let n_chunks_max = ids.len() / n_ctx.max(MIN_CTX);
    if n_ctx < MIN_CTX {
        return Err(Failure::usage(format!(
            "`-c {n_ctx}` is too short a context to score anything in, expected at least {MIN_CTX}"
        )));
    }
    if n_chunks_max < 2 && base.is_none() {
        return Err(Failure::input(format!(
            "the text has {} tokens, but two chunks of {n_ctx} are needed",
            ids.len()
        ))
        .hint("give a longer text, or shorter chunks with -c"));
    }
    let n_chunks = args.chunks.bound().map_or(n_chunks_max, |n| n.min(n_chunks_max));
    if n_chunks == 0 {
        return Err(Failure::usage("`--chunks 0` leaves nothing to score"));
    }
    let options = LoadOptions {
        n_ctx: Some(n_ctx),
        max_logit_rows: Some(MAX_LOGIT_ROWS),
        ..choices
    };
    let model = load_opened(&source, &network, &options)?;
    let adapter = adapter.map(|name| model.adapter(&name)).transpose()?;
    let mut scorer = Scorer {
        adapter: adapter.map(|adapter| adapter.id),
        model,
        nll: 0.0,
        nll2: 0.0,
        n_scored: 0,
        saved: None,
        base: base.map(|reader| (reader, Divergence::default())),
        row: Vec::new(),
    };
    let chunks: Vec<Vec<u32>> = (ids.chunks_exact(n_ctx).take(n_chunks))
        .map(|chunk| {
            let mut chunk = chunk.to_vec();
            if let (true, Some(bos)) = (tokenizer.adds_bos(), tokenizer.bos()) {
                chunk[0] = bos;
            }
            chunk
        })
        .collect();
    if let Some(path) = &args.save_logits {
        let header = Header {
            n_ctx,
            n_vocab,
            // As the text has them; readers put the token that begins a sequence in themselves.
            tokens: ids[..n_chunks * n_ctx].to_vec(),
        };
        scorer.saved = Some(Writer::create(path, header)?);
    }
    let bar = progress::steps("scoring", n_chunks as u64);
    for chunk in &chunks {
        scorer.score(chunk)?;
        bar.inc(1);
        bar.set_message(format!("perplexity {:.4}", scorer.result().0));
    }
    bar.finish_and_clear();
    let (perplexity, error) = scorer.result();
    if !perplexity.is_finite() {
        return Err(Failure::work("the model produced logits that are not finite")
            .hint("the file's weights may be damaged; fetch the file again"));
    }
    if let Some(saved) = scorer.saved.take() {
        saved.finish()?;
    }
    let divergence = scorer.base.as_ref().map(|(_, divergence)| divergence);
    if args.json {
        let mut report = json!({
            "model": source.name(),
            "perplexity": perplexity,
            "error": error,
            "n_ctx": n_ctx,
            "n_chunks": n_chunks,
            "n_scored": scorer.n_scored,
        });
        if let Some(divergence) = divergence {
            let figures = divergence.figures();
            report["base_perplexity"] = json!(divergence.base_perplexity());
            figures.add_to(&mut report);
        }
        return output::print_json(&report);
    }
    output::print_sentence(&format!(
        "perplexity {perplexity:.4} ± {error:.5} ({} of {n_ctx} tokens, {} scored)",
        counted(n_chunks, "chunk"),
        scorer.n_scored
    ))?;
    match divergence {
        Some(divergence) => {
            let base = divergence.base_perplexity();
            let ratio = perplexity / base;
            output::print_sentence(&format!("perplexity of the base {base:.4}, ratio {ratio:.5}"))?;
            output::print_sentence(&divergence.figures().to_text())
        }
        None => Ok(()),
    }
}

/// Sums up the surprise.
struct Scorer {
    model: Model,
    adapter: Option<AdapterId>,
    /// Sum of the negative log-likelihoods, and of their squares.
    nll: f64,
    nll2: f64,
    n_scored: usize,
    /// Writes the logits.
    saved: Option<Writer>,
    /// The reader of the base's logits, and the comparison with them.
    base: Option<(Reader, Divergence)>,
    /// The base's row.
    row: Vec<f32>,
}

impl Scorer {
    /// Scores the second half of a chunk.
    fn score(&mut self, chunk: &[u32]) -> Result<(), Failure> {
        // The last token predicts nothing that is known.
        let inputs = chunk[..chunk.len() - 1].to_vec();
        let params = ForwardParams {
            // Chunks have nothing in common, and each is scored as if it were the only one.
            uses_prefix_cache: false,
            adapter: self.adapter,
            ..ForwardParams::new(ForwardRows::Logits, chunk.len() / 2)
        };
        let generation = self.model.engine().submit_forward(inputs, params)?;
        for event in generation {
            match event {
                Event::Rows(rows) => {
                    let logits = rows.values.chunks_exact(rows.width);
                    for (row, &next) in logits.zip(&chunk[rows.first_position + 1..]) {
                        let nll = negative_log_likelihood(row, next);
                        self.nll += nll;
                        self.nll2 += nll * nll;
                        self.n_scored += 1;
                        if let Some(saved) = &mut self.saved {
                            saved.push(row)?;
                        }
                        if let Some((base, divergence)) = &mut self.base {
                            base.next_row(&mut self.row)?;
                            divergence.push(&self.row, row, next);
                        }
                    }
                }
                Event::Failed { error, .. } => return Err(error.into()),
                Event::Prefill(_) | Event::Token(_) | Event::Finished(_) => {}
            }
        }
        Ok(())
    }

    /// The perplexity and its standard error.
    fn result(&self) -> (f64, f64) {
        let n = self.n_scored as f64;
        let mean = self.nll / n;
        let variance = (self.nll2 / n - mean * mean).max(0.0);
        let perplexity = mean.exp();
        (perplexity, perplexity * (variance / (n - 1.0)).sqrt())
    }
}

pub(crate) fn negative_log_likelihood(logits: &[f32], id: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
    sum.ln() - f64::from(logits[id as usize] - max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_is_certain_costs_nothing() {
        assert_eq!(negative_log_likelihood(&[0.0, 1000.0], 1), 0.0);
        let even = negative_log_likelihood(&[5.0; 8], 3);
        assert!((even - 8f64.ln()).abs() < 1e-12, "{even}");
    }
}
