//! A server for a test: the demo model, or an executor that does as the test says.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokenmill::{load::LoadedDevice, text::ModelWords};
use tokenmill_backend::{
    Executor, ExecutorLimits, ForwardBatch, PageCopy, PageGroup, StepError, StepOutput, Ticket,
};
use tokenmill_model::{Model, ModelOptions};
use tokenmill_sched::{Engine, EngineConfig};
use tokenmill_server::{App, Drained, Listen, ServedModel, Server, ServerConfig};
use tokenmill_testkit::engines;
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    babble::babble,
    demo::{demo_path, tokenizer_to_fill, words_of},
    script::script,
    wire::{Exchange, Reply},
};

/// Sequences side by side, and so logit rows of a step.
const MAX_SEQS: usize = 24;

/// A running server; ends with the test.
pub(crate) struct TestServer {
    pub(crate) app: Arc<App>,
    /// `127.0.0.1:port`.
    pub(crate) address: String,
    pub(crate) run: JoinHandle<Drained>,
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
    /// Fails every step with this.
    pub(crate) step_error: Option<StepError>,
    /// Babbles instead of computing, where only the number of requests matters.
    pub(crate) babbles: bool,
    /// The chat template instead of the model's own.
    pub(crate) template: Option<String>,
    /// Says this to every request instead of computing.
    pub(crate) says: Option<String>,
    /// How long each step of what is said takes.
    pub(crate) step_time: Duration,
    /// Has a vocabulary with the marks of a gap, and no network.
    pub(crate) fills: bool,
    /// Has the same model guess what it will say.
    pub(crate) drafts: bool,
    /// One more name of the model.
    pub(crate) alias: Option<String>,
}

/// A model on a thread of its own, to guess for few sequences.
fn draft_of(model: &Model) -> impl Executor + Send + 'static {
    let options = ModelOptions {
        max_batch_seqs: 4,
        max_logit_rows: 4,
        n_pages: Some(128),
        ..ModelOptions::default()
    };
    engines::load(model, engines::cpu(1), &options).expect("the demo model loads")
}

impl TestServer {
    /// Starts the demo model with defaults.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(Setup::default()).await
    }

    /// Starts the demo model as `setup` says.
    pub(crate) async fn start_with(setup: Setup) -> Option<Self> {
        let model = Model::open(demo_path()?).expect("the demo model opens");
        let mut words = words_of(&model);
        if setup.fills {
            words = ModelWords::new(tokenizer_to_fill());
        }
        if let Some(template) = &setup.template {
            words.set_template(template).expect("the template parses");
        }
        let n_pages = setup.n_pages.unwrap_or(512);
        let executor: Box<dyn Executor + Send> = if let Some(text) = &setup.says {
            let tokenizer = words.tokenizer();
            let end_id = tokenizer.end_of_generation().first().copied().unwrap_or(0);
            let tokens = words.encode_text(text, false);
            Box::new(script(
                tokenizer.n_vocab(),
                end_id,
                n_pages,
                tokens,
                setup.step_time,
            ))
        } else if setup.babbles {
            let tokenizer = words.tokenizer();
            let end_id = tokenizer.end_of_generation()[0];
            Box::new(babble(tokenizer.n_vocab(), end_id, n_pages))
        } else {
            let options = ModelOptions {
                max_batch_seqs: MAX_SEQS,
                max_logit_rows: MAX_SEQS,
                n_pages: Some(n_pages),
                ..ModelOptions::default()
            };
            engines::load(&model, engines::cpu(1), &options).expect("the demo model loads")
        };
        let executor = match setup.step_error {
            Some(error) => Box::new(Behind {
                executor,
                first: Box::new(move || Err(error.clone())),
            }),
            None => executor,
        };
        let engine = match setup.hang {
            Some(hang) => Engine::start(waiting(executor, hang), setup.engine),
            None if setup.drafts => Engine::start_with_draft(executor, draft_of(&model), setup.engine),
            None => Engine::start(executor, setup.engine),
        };
        let mut names = vec!["demo".to_owned(), "demo-alias".to_owned()];
        names.extend(setup.alias);
        let config = ServerConfig {
            listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
            ..setup.server
        };
        let model =
            tokenmill::Model::from_parts("demo", words, engine, LoadedDevice::Own, None).with_identity(1);
        Some(Self::serve(names, model, config).await)
    }

    /// Starts a tiny model of the core data.
    pub(crate) async fn start_tiny(name: &str) -> Self {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/encoders");
        let path = format!("{data}/{name}/model-Q4_K_M.gguf");
        Self::start_file(path.as_ref(), name, ServerConfig::default()).await
    }

    /// Starts the model of a file, on a port that the system chooses.
    pub(crate) async fn start_file(path: &Path, name: &str, config: ServerConfig) -> Self {
        let options = tokenmill::Model::options()
            .threads(1)
            .device(tokenmill::Device::Cpu);
        let model = options.load(path).expect("the tiny model loads");
        let config = ServerConfig {
            listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
            ..config
        };
        Self::serve(vec![name.to_owned()], model, config).await
    }

    async fn serve(names: Vec<String>, model: tokenmill::Model, config: ServerConfig) -> Self {
        let app = Arc::new(App::new(ServedModel::new(names, model), config));
        let server = Server::bind(Arc::clone(&app)).await.expect("a free port");
        let address = server.address();
        let address = address.rsplit('/').next().expect("an address").to_owned();
        Self {
            app,
            address,
            run: tokio::spawn(server.run()),
        }
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

    /// Waits until nothing runs and no page is held.
    pub(crate) async fn assert_idle(&self) {
        let engine = self.app.model.engine();
        wait_until("no page is held and nothing runs or waits", || {
            let stats = engine.stats();
            stats.n_pages_in_use == 0 && stats.n_running == 0 && engine.queued() == (0, 0)
        })
        .await;
        // And the server still serves.
        let body = json!({ "prompt": "One", "max_tokens": 2, "temperature": 0, "ignore_eos": true });
        let reply = self.post_ok("/v1/completions", &body).await;
        assert_eq!(reply["usage"]["completion_tokens"], 2);
    }
}

/// The model of a running server, for a second server.
pub(crate) fn served_again(app: &App) -> ServedModel {
    ServedModel::new(app.model.names().to_vec(), app.model.model().clone())
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

/// Loads the demo model. Its steps wait while the value is true.
pub(crate) fn hanging_demo(hang: watch::Receiver<bool>) -> Option<tokenmill::Model> {
    let network = Model::open(demo_path()?).expect("the demo model opens");
    let words = words_of(&network);
    let options = ModelOptions {
        n_pages: Some(512),
        ..ModelOptions::default()
    };
    let executor = engines::load(&network, engines::cpu(1), &options).expect("the demo model loads");
    let engine = Engine::start(waiting(executor, hang), EngineConfig::default());
    let model = tokenmill::Model::from_parts("demo", words, engine, LoadedDevice::Own, None);
    Some(model.with_identity(1))
}

/// Lets each step of an executor wait while the value is true.
fn waiting(executor: Box<dyn Executor + Send>, hang: watch::Receiver<bool>) -> Behind {
    let first = Box::new(move || {
        while *hang.borrow() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    Behind { executor, first }
}

/// An executor behind something that each of its steps meets first.
struct Behind {
    executor: Box<dyn Executor + Send>,
    first: Box<dyn FnMut() -> Result<(), StepError> + Send>,
}

impl Executor for Behind {
    fn limits(&self) -> &ExecutorLimits {
        self.executor.limits()
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        (self.first)()?;
        self.executor.submit(batch)
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        self.executor.wait(ticket, output)
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
        self.executor.copy_pages(group, copies)
    }
}
