//! `batch`: answers a file of requests, in the form of OpenAI's batch API, as fast as the machine can.
//!
//! Every request goes through the server's own router, without a socket, so a line means the same as to `serve`. Here
//! is the running of it; a line is in `batch/line.rs`, the file of results in `batch/results.rs`. Invariant: each line of
//! the input has exactly one result in the end, however often the command was killed and started again.

mod line;
mod results;

use std::{
    collections::HashSet,
    fmt::Display,
    fs::File,
    io::{BufRead, BufReader, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response,
    body::{Body, Bytes},
    header::CONTENT_TYPE,
    service::Service,
};
use hyper_util::service::TowerToHyperService;
use indicatif::ProgressBar;
use tokenmill::load::LimitFlags;
use tokenmill_gguf::RegularFile;
use tokenmill_sched::{EngineState, EngineStats};
use tokenmill_server::{App, ServerConfig, router};
use tokio::{signal, task::JoinSet, time};

use self::{
    line::{BadLine, BatchRequest},
    results::{Ending, Kept, Results},
};
use crate::{
    adapters::AdapterArgs,
    commands::serve::{Seats, load_app},
    failure::Failure,
    load::LoadArgs,
    media::MediaArgs,
    note::note,
    progress,
    speculation::SpeculationArgs,
    swapped::refuse_model_as_text,
    template::TemplateArgs,
    visible::visible,
    vision::{MAX_IMAGE_BYTES, VisionArgs},
};

/// Requests in hand for each sequence computed, so that one is ready when a sequence ends.
const REQUESTS_PER_SEAT: usize = 2;

/// Longest line of the input.
const MAX_LINE_BYTES: u64 = 17 << 20;

/// How long a request waits for room in memory: none comes slowly, and one that is given up has no answer.
const ROOM_PATIENCE: Duration = Duration::from_hours(24 * 365);

/// How often the figures of the progress bar are renewed.
const REFRESH: Duration = Duration::from_millis(500);

/// Answer a file of requests.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill batch model.gguf requests.jsonl results.jsonl\n  \
    tokenmill batch demo requests.jsonl results.jsonl --max-num-seqs 8\n\n\
    A line of INPUT is one request of OpenAI's batch API:\n  \
    {\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"Hi\"}}\n\n\
    OUTPUT gets one line for each, in the order in which they are done. Where it has some already, only the others are\n\
    answered: a stopped command resumes when it is run again. A line that cannot be answered gets its reason.")]
pub(crate) struct Args {
    /// A GGUF file, a folder with one, a Hugging Face folder, OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    model: PathBuf,
    /// Requests, one JSON object a line
    input: PathBuf,
    /// Results, one JSON object a line
    output: PathBuf,
    /// Most sequences in one batch
    #[arg(long, alias = "parallel", default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_num_seqs: u16,
    /// Tokens that the KV cache holds, shared by all sequences [default: four contexts, or as many tokens as fit into memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    kv_cache_tokens: Option<u32>,
    /// Exit with code 1 if a request was refused, now or in an earlier run; without it the command succeeds when each line has an answer
    /// or a reason
    #[arg(long)]
    fail_on_error: bool,
    #[command(flatten)]
    media: MediaArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    vision: VisionArgs,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let n_lines = count_lines(&args.input)?;
    let is_same = |path: &Path| path.canonicalize().ok();
    if is_same(&args.input).is_some_and(|input| Some(input) == is_same(&args.output)) {
        return Err(Failure::usage("INPUT and OUTPUT are the same file"));
    }
    let config = ServerConfig {
        media_folder: args.media.folder()?,
        // The lines are of whoever runs this, and so are the files: both have the limits of such files elsewhere.
        max_body_bytes: MAX_LINE_BYTES as usize,
        max_media_bytes: Some(MAX_IMAGE_BYTES.div_ceil(3) * 4),
        body_timeout: ROOM_PATIENCE,
        ..ServerConfig::default()
    };
    let results = Results::open(&args.output)?;
    let n_seqs = usize::from(args.max_num_seqs);
    let seats = Seats {
        limits: LimitFlags {
            max_num_seqs: Some(n_seqs),
            kv_cache_tokens: args.kv_cache_tokens.map(|n| n as usize),
            // Few requests are in hand at a time, so their own size is the only bound.
            max_queued: Some(usize::MAX),
            max_queued_tokens: Some(usize::MAX),
            // No reader waits for single tokens.
            max_stall_percent: Some(10_000),
            ..LimitFlags::default()
        },
        max_page_event_batches: None,
        prefix_folder: None,
        speculation: &args.speculation,
        context_shift: None,
    };
    let app = Arc::new(load_app(
        &args.model,
        &args.load,
        (&args.adapters, &args.vision, &args.template),
        &seats,
        &[],
        config,
    )?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::work(format!("cannot start the threads of requests: {error}")))?;
    let bar = progress::steps("answering", n_lines as u64);
    let mut batch = Batch {
        app,
        results,
        bar,
        started: Instant::now(),
        n_answered: 0,
        n_refused: 0,
        n_kept: 0,
        n_kept_refused: 0,
    };
    let outcome = runtime.block_on(batch.run(open(&args.input)?, n_seqs * REQUESTS_PER_SEAT));
    batch.bar.finish_and_clear();
    let n_refused = batch.n_refused + batch.n_kept_refused;
    let reasons = match n_refused {
        0 => String::new(),
        _ => format!(
            "; {} has the reasons",
            visible(&args.output.display().to_string())
        ),
    };
    note!("[{}{reasons}]", batch.line());
    outcome?;
    batch.results.sync()?;
    if args.fail_on_error && n_refused > 0 {
        let (n, output) = (n_refused, args.output.display());
        return Err(Failure::work(format!("{n} of the requests were refused"))
            .hint(format!("{output} has the reasons")));
    }
    Ok(())
}

/// The lines of a file, each with its number, counted from 1.
struct InputLines {
    path: PathBuf,
    reader: BufReader<File>,
    n_read: usize,
}

fn open(path: &Path) -> Result<InputLines, Failure> {
    // It is read twice, first to count its lines: a pipe would be empty by then, and a device has no end.
    let file = RegularFile::open(path).map_err(|error| Failure::unreadable(path, &error))?;
    Ok(InputLines {
        path: path.to_owned(),
        reader: BufReader::new(file.into_file()),
        n_read: 0,
    })
}

impl Iterator for InputLines {
    type Item = Result<(usize, Vec<u8>), Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        self.n_read += 1;
        match (&mut self.reader)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
        {
            Ok(0) => None,
            Ok(n_bytes) if n_bytes as u64 == MAX_LINE_BYTES && line.last() != Some(&b'\n') => {
                Some(Err(Failure::input(format!(
                    "line {} of {} is longer than {MAX_LINE_BYTES} bytes",
                    self.n_read,
                    self.path.display()
                ))))
            }
            Ok(_) => Some(Ok((self.n_read, line))),
            Err(error) => Some(Err(Failure::unreadable(&self.path, &error))),
        }
    }
}

/// Counts the lines that are not blank.
///
/// # Errors
/// A file in which no line has the id of a request: it is something else than a batch, and results would be written for each of its lines.
fn count_lines(path: &Path) -> Result<usize, Failure> {
    refuse_model_as_text(path)?;
    let (mut n_lines, mut is_batch, mut first_fault) = (0, false, None);
    for line in open(path)? {
        let (line_number, line) = line?;
        if is_blank(&line) {
            continue;
        }
        n_lines += 1;
        if is_batch {
            continue;
        }
        match BatchRequest::parse(&line, &mut HashSet::new()) {
            Err(BadLine {
                custom_id: None,
                message,
                ..
            }) => {
                first_fault.get_or_insert(format!(": line {line_number}: {message}"));
            }
            _ => is_batch = true,
        }
    }
    if is_batch {
        return Ok(n_lines);
    }
    let fault = first_fault.unwrap_or_default();
    Err(
        Failure::input(format!("{} holds no request of a batch{fault}", path.display())).hint(
            "a line is {\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"Hi\"}}",
        ),
    )
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

/// A batch that runs.
struct Batch {
    app: Arc<App>,
    results: Results,
    bar: ProgressBar,
    started: Instant,
    n_answered: usize,
    n_refused: usize,
    /// Requests that had their result before.
    n_kept: usize,
    /// The refused ones among them.
    n_kept_refused: usize,
}

/// A request that was answered.
struct Answer {
    line_number: usize,
    custom_id: String,
    ending: Result<Ending, Failure>,
}

impl Batch {
    /// Answers the requests without a result, `max_in_hand` at a time.
    async fn run(&mut self, lines: InputLines, max_in_hand: usize) -> Result<(), Failure> {
        let service = TowerToHyperService::new(router(Arc::clone(&self.app)));
        let mut in_hand: JoinSet<Answer> = JoinSet::new();
        let mut ids = HashSet::new();
        let path = lines.path.clone();
        for line in lines {
            let (line_number, line) = line?;
            if is_blank(&line) {
                continue;
            }
            let request = BatchRequest::parse(&line, &mut ids);
            let custom_id = match &request {
                Ok(request) => Some(request.custom_id.as_str()),
                Err(bad) => bad.custom_id.as_deref(),
            };
            if let Some(kept) = self.results.of(line_number, custom_id)? {
                self.n_kept += 1;
                self.n_kept_refused += usize::from(kept == Kept::Refused);
                self.bar.inc(1);
                continue;
            }
            match request {
                Err(bad) => self.refuse(&path, line_number, &bad)?,
                Ok(request) => {
                    let service = service.clone();
                    in_hand.spawn(async move {
                        Answer {
                            line_number,
                            ending: answer(&service, &request).await,
                            custom_id: request.custom_id,
                        }
                    });
                }
            }
            while in_hand.len() >= max_in_hand {
                self.take_next(&mut in_hand).await?;
            }
        }
        while !in_hand.is_empty() {
            self.take_next(&mut in_hand).await?;
        }
        Ok(())
    }

    fn refuse(&mut self, path: &Path, line_number: usize, bad: &BadLine) -> Result<(), Failure> {
        let ending = Ending::Error {
            code: bad.code,
            message: format!("line {line_number} of {}: {}", path.display(), bad.message),
        };
        self.results.add(line_number, bad.custom_id.as_deref(), ending)?;
        self.n_refused += 1;
        self.bar.inc(1);
        Ok(())
    }

    /// Waits for the next answer and stores it.
    async fn take_next(&mut self, in_hand: &mut JoinSet<Answer>) -> Result<(), Failure> {
        let answer = loop {
            tokio::select! {
                answer = in_hand.join_next() => break answer,
                () = time::sleep(REFRESH) => self.bar.set_message(format!("answering, {}", self.rate())),
                _ = signal::ctrl_c() => return Err(Failure::interrupted()),
            }
        };
        let answer = answer
            .expect("something is in hand")
            .map_err(|error| Failure::work(error.to_string()))?;
        // An engine that has ended fails all requests in progress. That is not an answer: they are sent again next time.
        if let EngineState::Ended(reason) = self.app.model.engine().state() {
            return Err(reason.into());
        }
        let ending = answer.ending?;
        match &ending {
            Ending::Response { status_code: 200, .. } => self.n_answered += 1,
            _ => self.n_refused += 1,
        }
        self.results
            .add(answer.line_number, Some(&answer.custom_id), ending)?;
        self.bar.inc(1);
        Ok(())
    }

    fn rate(&self) -> String {
        let EngineStats { generated_tokens, .. } = self.app.model.engine().stats();
        let tokens_per_s = generated_tokens as f64 / self.started.elapsed().as_secs_f64();
        format!("{tokens_per_s:.1} tokens/s")
    }

    /// One line for people.
    fn line(&self) -> String {
        let kept = match (self.n_kept, self.n_kept_refused) {
            (0, _) => String::new(),
            (n, 0) => format!(", {n} had their result already"),
            (n, n_refused) => format!(", {n} had their result already, {n_refused} of them a refusal"),
        };
        format!(
            "{} answered, {} refused{kept}; {} tokens, {}",
            self.n_answered,
            self.n_refused,
            self.app.model.engine().stats().generated_tokens,
            self.rate()
        )
    }
}

/// Has a request answered by the API.
///
/// # Errors
/// An answer that cannot be read or is not JSON.
async fn answer<S, B>(service: &S, request: &BatchRequest) -> Result<Ending, Failure>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>>,
    S::Error: Display,
    B: Body,
    B::Error: Display,
{
    let unreadable = |error: &dyn Display| Failure::work(format!("an answer cannot be read: {error}"));
    let http = Request::builder()
        .method(Method::POST)
        .uri(request.url)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(request.body.clone())))
        .expect("the parts above are well-formed");
    let (head, body) = (service.call(http).await)
        .map_err(|error| unreadable(&error))?
        .into_parts();
    let bytes = (body.collect().await)
        .map_err(|error| unreadable(&error))?
        .to_bytes();
    let request_id = head.headers.get("x-request-id").and_then(|id| id.to_str().ok());
    Ok(Ending::Response {
        status_code: head.status.as_u16(),
        request_id: request_id.map(str::to_owned),
        body: serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))?,
    })
}
