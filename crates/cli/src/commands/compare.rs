//! `compare`: two files of one model on a text, side by side.
//!
//! `perplexity`, in contrast, keeps logits in a file. Both models are loaded; the first one's rows of a chunk
//! are in memory while the second one computes the same chunk.

mod chart;
mod embeddings;

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use serde_json::{Value, json};
use tokenmill::{LoadOptions, Model, load::ModelSource};
use tokenmill_model::{Model as Network, PooledOutput};
use tokenmill_sched::{Event, ForwardParams, ForwardRows};
use tokenmill_text::EncodeOptions;

use crate::{
    failure::Failure,
    input::read_text,
    interrupt,
    load::{LoadArgs, load_opened},
    note::note,
    numbers::{Limit, size},
    output, progress,
    visible::visible_lines,
};

use super::perplexity::{divergence::Divergence, negative_log_likelihood};

/// Context where nothing else is said.
const DEFAULT_CTX: usize = 512;
/// Rows of logits computed at a time.
const MAX_LOGIT_ROWS: usize = 64;

/// Compare two files of a model on a text: their predictions, or their embeddings of its lines.
#[derive(clap::Args)]
#[command(mut_arg("ctx_size", |arg| arg.help("Tokens of a chunk, of which the second half is scored [default: 512]")))]
#[command(after_help = "Examples:\n  \
    tokenmill compare model-f16.gguf model-q4_k_m.gguf wiki.test.raw --chunks 16\n  \
    tokenmill compare model-q8_0.gguf model-iq3_xs.gguf book.txt --json --svg book.svg\n  \
    tokenmill compare bge-f16.gguf bge-q4_k_m.gguf sentences.txt --chunks 500\n\n\
    The first file is the base: divergences are of the second from it, in nats. Embedding models compute each line of the text by\n\
    itself; the cosine of its two vectors is 1 where they point the same way.")]
pub(crate) struct Args {
    /// The base: a GGUF file, a folder, OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    base: PathBuf,
    /// The other file of the same model
    other: PathBuf,
    /// The text
    file: PathBuf,
    /// Chunks to compute, or lines for embedding models; -1 takes all
    #[arg(long, value_name = "N", default_value_t = Limit::Unbounded)]
    chunks: Limit,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the divergence along the text; `-` is standard output, and the figures are on standard error then
    #[arg(long, alias = "chart", value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    load: LoadArgs,
}

/// One of the two.
struct Side {
    name: String,
    n_bytes: u64,
    model: Model,
    nll: f64,
    n_scored: usize,
    seconds: f64,
    n_tokens: usize,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    interrupt::ends_at_once()?;
    if args.chunks == Limit::AtMost(0) {
        return Err(Failure::usage("`--chunks 0` leaves nothing to compare"));
    }
    let drawing = args.drawing()?;
    if let Some(Drawing::File(path)) = drawing {
        output::refuse_input(path, &[&args.file])?;
        output::check_writable(path)?;
    }
    let text = read_text(&args.file)?;
    let mut n_ctx = args.load.n_ctx_given().unwrap_or(DEFAULT_CTX);
    if n_ctx < 4 {
        return Err(Failure::usage(format!(
            "`-c {n_ctx}` is too short a context to score anything in, expected at least 4"
        )));
    }
    let mut options = LoadOptions {
        n_ctx: Some(n_ctx),
        max_logit_rows: Some(MAX_LOGIT_ROWS),
        ..args.load.options()?
    };
    let mut ids: Vec<Vec<u32>> = Vec::new();
    let mut bos = None;
    let mut opened = Vec::new();
    for path in [&args.base, &args.other] {
        let source = ModelSource::find(args.load.fetch.resolve(path)?)?;
        if let Some(Drawing::File(svg)) = drawing {
            output::refuse_input(svg, &[source.path()])?;
        }
        let network = options.open_network(&source)?;
        if let (Some(Drawing::File(svg)), Some(file)) = (drawing, network.gguf()) {
            output::refuse_input(svg, &file.paths().collect::<Vec<_>>())?;
        }
        opened.push((source, network));
    }
    let makes = made_by(&opened)?;
    if makes == Makes::Vectors && args.svg.is_some() {
        return Err(Failure::usage(
            "`--svg` draws divergences of predictions, and these models make vectors",
        )
        .hint("leave it out; `--json` has the figures"));
    }
    if makes == Makes::Vectors && args.load.n_ctx_given().is_none() {
        let most = opened.iter().map(|(_, network)| network.descriptor().n_ctx_train);
        n_ctx = most.min().unwrap_or(n_ctx).min(n_ctx);
        options.n_ctx = Some(n_ctx);
    }
    let mut sides = Vec::new();
    for (source, network) in opened {
        let tokenizer = source.tokenizer(network.gguf())?;
        ids.push(tokenizer.encode(&text, EncodeOptions::default()));
        bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        sides.push(Side {
            name: source.name(),
            n_bytes: (network.weights().infos().iter())
                .map(|info| info.stored_form().n_bytes as u64)
                .sum(),
            model: load_opened(&source, &network, &options)?,
            nll: 0.0,
            n_scored: 0,
            seconds: 0.0,
            n_tokens: 0,
        });
    }
    if makes == Makes::Vectors {
        let [base, other] = &mut sides[..] else {
            unreachable!("both were loaded")
        };
        return embeddings::compare([base, other], &text, args.chunks, args.json);
    }
    if ids[0] != ids[1] {
        return Err(
            Failure::input("the two have different tokens for the text").hint("compare files of one model")
        );
    }
    let n_chunks_max = ids[0].len() / n_ctx;
    let n_chunks = args.chunks.bound().map_or(n_chunks_max, |n| n.min(n_chunks_max));
    if n_chunks == 0 {
        return Err(Failure::input(format!(
            "the text has {} tokens, but a chunk of {n_ctx} is needed",
            ids[0].len()
        ))
        .hint("give a longer text, or shorter chunks with -c"));
    }
    let mut divergence = Divergence::default();
    let bar = progress::steps("comparing", n_chunks as u64);
    let mut rows: Vec<f32> = Vec::new();
    for chunk in ids[0].chunks_exact(n_ctx).take(n_chunks) {
        let mut chunk = chunk.to_vec();
        if let Some(bos) = bos {
            chunk[0] = bos;
        }
        rows.clear();
        let [base, other] = &mut sides[..] else { break };
        base.each_row(&chunk, &mut |logits, _| {
            let log_sum = log_sum_exp(logits);
            rows.extend(logits.iter().map(|&logit| (f64::from(logit) - log_sum) as f32));
        })?;
        let mut at = 0;
        other.each_row(&chunk, &mut |logits, next| {
            if let Some(row) = rows.get(at..at + logits.len()) {
                divergence.push(row, logits, next);
            }
            at += logits.len();
        })?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let figures = divergence.figures();
    if let Some(drawing) = drawing {
        let names = [0, 1].map(|side: usize| sides[side].name.as_str());
        let svg = chart::draw(names, &divergence);
        match drawing {
            Drawing::File(path) => {
                output::write_file(path, &svg)?;
            }
            Drawing::StandardOutput => output::print(&svg)?,
        }
    }
    if args.json {
        let mut report = json!({
            "n_ctx": n_ctx,
            "n_chunks": n_chunks,
            "models": sides.iter().map(Side::to_json).collect::<Vec<_>>(),
        });
        figures.add_to(&mut report);
        return output::print_json(&report);
    }
    let lines = (sides.iter().map(Side::to_text)).chain([figures.to_text()]);
    for line in lines {
        match drawing {
            Some(Drawing::StandardOutput) => note!("{}", visible_lines(&line)),
            _ => output::print_sentence(&line)?,
        }
    }
    Ok(())
}

/// The output of a model for a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Makes {
    Predictions,
    Vectors,
}

/// Returns the output that both models make.
///
/// # Errors
/// Fails if the models make different outputs, or if one ranks documents.
fn made_by(opened: &[(ModelSource, Network)]) -> Result<Makes, Failure> {
    let mut made = Vec::new();
    for (source, network) in opened {
        let descriptor = network.descriptor();
        let output = descriptor.pooling.as_ref().map(|pooling| pooling.output);
        made.push(match output {
            Some(PooledOutput::Rank) => {
                let message = format!(
                    "{} ranks documents, and makes neither predictions nor vectors",
                    source.name()
                );
                return Err(
                    Failure::input(message).hint("models that continue texts or embed them can be compared")
                );
            }
            Some(_) => Makes::Vectors,
            None if descriptor.is_encoder() => Makes::Vectors,
            None => Makes::Predictions,
        });
    }
    match made[..] {
        [base, other] if base == other => Ok(base),
        _ => Err(
            Failure::input("one of the two makes vectors, the other predictions")
                .hint("compare files of one model"),
        ),
    }
}

/// Where the drawing goes.
#[derive(Clone, Copy)]
enum Drawing<'a> {
    File(&'a Path),
    StandardOutput,
}

impl Args {
    /// Where the drawing goes, if there is one.
    ///
    /// # Errors
    /// JSON that would be mixed with it.
    fn drawing(&self) -> Result<Option<Drawing<'_>>, Failure> {
        match self.svg.as_deref() {
            None => Ok(None),
            Some(path) if path.as_os_str() != "-" => Ok(Some(Drawing::File(path))),
            Some(_) if self.json => Err(Failure::usage(
                "`--svg -` and `--json` both write to standard output",
            )
            .hint("name a file for the drawing; a file called `-` is `./-`")),
            Some(_) => Ok(Some(Drawing::StandardOutput)),
        }
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
    f64::from(max) + sum.ln()
}

impl Side {
    /// Computes a chunk, and passes on the logits of each position in its second half with the token that follows.
    fn each_row(&mut self, chunk: &[u32], on_row: &mut dyn FnMut(&[f32], u32)) -> Result<(), Failure> {
        let start = Instant::now();
        let params = ForwardParams {
            uses_prefix_cache: false,
            ..ForwardParams::new(ForwardRows::Logits, chunk.len() / 2)
        };
        let inputs = chunk[..chunk.len() - 1].to_vec();
        self.n_tokens += inputs.len();
        for event in self.model.engine().submit_forward(inputs, params)? {
            match event {
                Event::Rows(rows) => {
                    let logits = rows.values.chunks_exact(rows.width);
                    for (row, &next) in logits.zip(&chunk[rows.first_position + 1..]) {
                        self.nll += negative_log_likelihood(row, next);
                        self.n_scored += 1;
                        on_row(row, next);
                    }
                }
                Event::Failed { error, .. } => return Err(error.into()),
                Event::Prefill(_) | Event::Token(_) | Event::Finished(_) => {}
            }
        }
        self.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn perplexity(&self) -> f64 {
        (self.nll / self.n_scored.max(1) as f64).exp()
    }

    fn speed(&self) -> f64 {
        self.n_tokens as f64 / self.seconds.max(1e-9)
    }

    /// Returns the size of its weights, in words.
    fn size(&self) -> String {
        usize::try_from(self.n_bytes).map_or_else(|_| String::new(), size)
    }

    fn to_json(&self) -> Value {
        json!({
            "model": self.name,
            "n_bytes": self.n_bytes,
            "perplexity": self.perplexity(),
            "tokens_per_second": self.speed(),
        })
    }

    fn to_text(&self) -> String {
        format!(
            "{}: {}, perplexity {:.4}, {:.1} tokens/s",
            self.name,
            self.size(),
            self.perplexity(),
            self.speed()
        )
    }
}
