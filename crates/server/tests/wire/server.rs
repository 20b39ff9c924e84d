//! A server for a test: the demo model, or an executor that does as the test says.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokenmill_model::{
    Executor, ExecutorLimits, ForwardBatch, Model, ModelOptions, PageCopy, StepError, StepOutput, Ticket,
};
use tokenmill_sched::{Engine, EngineConfig};
use tokenmill_server::{
    App, Drained, Listen, Metrics, ModelWords, ServedModel, Server, ServerConfig, Shutdown,
};
use tokenmill_text::{ChatPrompt, Tokenizer, template::ChatTemplate};
use tokio::{sync::watch, task::JoinHandle};

use crate::wire::{Exchange, Reply};

/// Sequences side by side, and so logit rows of a step.
const MAX_SEQS: usize = 24;

/// A running server; ends with the test.
pub(crate) struct TestServer {
    pub(crate) app: Arc<App>,
    /// `127.0.0.1:port`.
    pub(crate) address: String,
    pub(crate) run: JoinHandle<Drained>,
}

/// The demo model's file; `None`, with a printed reason, in a packaged crate that does not have it.
pub(crate) fn demo_path() -> Option<PathBuf> {
    let path = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../cli/assets/tokenmill-demo-Q8_0.gguf"
    ));
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not part of a packaged crate", path.display());
    None
}

/// How a test's server differs from the default one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    pub(crate) server: ServerConfig,
    pub(crate) engine: EngineConfig,
    /// KV pages; by default enough for a few full contexts.
    pub(crate) n_pages: Option<usize>,
    /// Blocks every step while the value is true.
    pub(crate) hang: Option<watch::Receiver<bool>>,
}

impl TestServer {
    /// Starts the demo model with defaults.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(Setup::default()).await
    }

    /// Starts the demo model as `setup` says.
    pub(crate) async fn start_with(setup: Setup) -> Option<Self> {
        let model = Model::open(demo_path()?).expect("the demo model opens");
        let metadata = model.gguf().expect("a GGUF file").metadata();
        let tokenizer = Tokenizer::from_gguf(metadata).expect("a tokenizer");
        let template = metadata.str("tokenizer.chat_template").expect("a template");
        let template = ChatTemplate::new(template).expect("the template parses");
        let words = ModelWords {
            chat: Some(ChatPrompt::new(template, &tokenizer)),
            tokenizer: Arc::new(tokenizer),
            bos_token: String::new(),
            eos_token: String::new(),
            end_ids: Vec::new(),
        };
        let options = ModelOptions {
            max_batch_seqs: MAX_SEQS,
            max_logit_rows: MAX_SEQS,
            n_pages: Some(setup.n_pages.unwrap_or(512)),
            n_threads: Some(1),
            ..ModelOptions::default()
        };
        let executor = model.load(&options, &mut |_| {}).expect("the demo model loads");
        let n_pages = executor.limits().n_pages;
        let engine = match setup.hang {
            Some(hang) => Engine::start(Hanging { executor, hang }, setup.engine),
            None => Engine::start(executor, setup.engine),
        };
        let names = vec!["demo".to_owned(), "demo-alias".to_owned()];
        let app = Arc::new(App {
            model: ServedModel::new(names, words, engine),
            config: ServerConfig {
                listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
                ..setup.server
            },
            metrics: Metrics::new("demo", n_pages),
            shutdown: Shutdown::default(),
        });
        let server = Server::bind(Arc::clone(&app)).await.expect("a free port");
        let address = server.address().trim_start_matches("http://").to_owned();
        Some(Self {
            app,
            address,
            run: tokio::spawn(server.run()),
        })
    }

    /// Sends a JSON body and waits for the whole answer.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_stream(path, body).await.reply().await
    }

    /// Sends a JSON body.
    pub(crate) async fn post_stream(&self, path: &str, body: &Value) -> Exchange {
        let body = body.to_string();
        let headers = [("content-type", "application/json")];
        Exchange::send(&self.address, "POST", path, &headers, body.as_bytes()).await
    }

    /// Asks for a path.
    pub(crate) async fn get(&self, path: &str) -> Reply {
        let exchange = Exchange::send(&self.address, "GET", path, &[], b"").await;
        exchange.reply().await
    }

    /// Posts a body that must be answered with 200, and gives the answer.
    pub(crate) async fn post_ok(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    /// Waits until nothing runs and nobody holds a page.
    pub(crate) async fn assert_idle(&self) {
        let engine = self.app.model.engine();
        wait_until("no page is held and nothing runs or waits", || {
            let stats = engine.stats();
            stats.n_pages_in_use == 0 && stats.n_running == 0 && engine.queued() == (0, 0)
        })
        .await;
        // And the server still serves.
        let body = json!({ "prompt": "One", "max_tokens": 2, "temperature": 0 });
        let reply = self.post_ok("/v1/completions", &body).await;
        assert_eq!(reply["usage"]["completion_tokens"], 2);
    }
}

/// Waits for a state that must come soon.
#[track_caller]
pub(crate) fn wait_until(claim: &'static str, mut holds: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !holds() {
            assert!(Instant::now() < deadline, "{caller}: not within 30 s: {claim}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// The demo model on a device that stops answering while it is told to.
struct Hanging {
    executor: Box<dyn Executor + Send>,
    hang: watch::Receiver<bool>,
}

impl Executor for Hanging {
    fn limits(&self) -> &ExecutorLimits {
        self.executor.limits()
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        while *self.hang.borrow() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.executor.submit(batch)
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        self.executor.wait(ticket, output)
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), StepError> {
        self.executor.copy_pages(copies)
    }
}
