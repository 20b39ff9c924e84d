//! A server of several models for a test, each of which says a sentence of its own.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokenmill::{Model, load::LoadedDevice};
use tokenmill_model::Model as Network;
use tokenmill_sched::{Engine, EngineConfig};
use tokenmill_server::{
    Drained, Listen, ModelLimits, ModelLoader, ModelSpec, Models, Server, ServerConfig, models::Measured,
};
use tokio::task::JoinHandle;

use crate::{
    demo::{demo_path, words_of},
    script::script,
    wire::{Exchange, Reply},
};

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A model that says one sentence, and what a test does to its loads.
#[derive(Clone, Debug)]
pub(crate) struct Speaker(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) says: String,
    pub(crate) n_bytes: u64,
    pub(crate) step_time: Duration,
    pub(crate) load_time: Mutex<Duration>,
    pub(crate) fails: Mutex<Option<String>>,
    pub(crate) panics: AtomicBool,
    pub(crate) n_loads: AtomicUsize,
    pub(crate) quiet_loads: AtomicUsize,
    /// Models of the test that are in memory.
    pub(crate) n_alive: Arc<AtomicUsize>,
}

impl Speaker {
    pub(crate) fn new(says: &str, n_bytes: u64, n_alive: &Arc<AtomicUsize>) -> Self {
        Self(Arc::new(Inner {
            says: says.to_owned(),
            n_bytes,
            step_time: Duration::from_millis(1),
            load_time: Mutex::default(),
            fails: Mutex::default(),
            panics: AtomicBool::new(false),
            n_loads: AtomicUsize::new(0),
            quiet_loads: AtomicUsize::new(0),
            n_alive: Arc::clone(n_alive),
        }))
    }

    pub(crate) fn load_takes(&self, time: Duration) {
        *self.0.load_time.lock().expect("no test panics with it") = time;
    }

    pub(crate) fn fail(&self, reason: Option<&str>) {
        *self.0.fails.lock().expect("no test panics with it") = reason.map(str::to_owned);
    }

    pub(crate) fn n_loads(&self) -> usize {
        self.0.n_loads.load(Ordering::SeqCst)
    }
}

impl ModelLoader for Speaker {
    fn measure(&self) -> Result<Measured, String> {
        Ok(Measured {
            n_bytes: self.0.n_bytes,
            ..Measured::default()
        })
    }

    fn load(&self, is_quiet: bool) -> Result<Model, String> {
        self.0.n_loads.fetch_add(1, Ordering::SeqCst);
        self.0
            .quiet_loads
            .fetch_add(usize::from(is_quiet), Ordering::SeqCst);
        let load_time = *self.0.load_time.lock().expect("no test panics with it");
        std::thread::sleep(load_time);
        assert!(!self.0.panics.load(Ordering::SeqCst), "the load panics");
        if let Some(reason) = self.0.fails.lock().expect("no test panics with it").clone() {
            return Err(reason);
        }
        let path = demo_path().ok_or("there is no demo model")?;
        let network = Network::open(path).map_err(|error| error.to_string())?;
        let words = words_of(&network);
        let tokenizer = words.tokenizer();
        let end_id = tokenizer.end_of_generation().first().copied().unwrap_or(0);
        let tokens = words.encode_text(&self.0.says, false);
        let script = script(tokenizer.n_vocab(), end_id, 512, tokens, self.0.step_time);
        let counted = script.with(Alive::new(&self.0.n_alive));
        let engine = Engine::start(counted, EngineConfig::default());
        Ok(Model::from_parts(
            &*self.0.says,
            words,
            engine,
            LoadedDevice::Own,
            None,
        ))
    }
}

/// Counts one more while it is in memory.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(n_alive: &Arc<AtomicUsize>) -> Self {
        n_alive.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(n_alive))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A server of several models.
pub(crate) struct Several {
    pub(crate) models: Models,
    pub(crate) address: String,
    pub(crate) run: JoinHandle<Drained>,
}

impl Several {
    pub(crate) async fn start(specs: Vec<ModelSpec>, limits: ModelLimits, config: ServerConfig) -> Self {
        let config = ServerConfig {
            listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
            ..config
        };
        let models = Models::new(specs, limits, config).expect("the models have names of their own");
        let server = Server::bind(models.clone()).await.expect("a free port");
        let address = server.address();
        let address = address.rsplit('/').next().expect("an address").to_owned();
        let run = tokio::spawn(server.run());
        Self { models, address, run }
    }

    pub(crate) async fn send(&self, path: &str, body: &Value) -> Exchange {
        send(&self.address, path, body).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(path, body).await.reply().await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        Exchange::send(&self.address, "GET", path, &[], b"")
            .await
            .reply()
            .await
    }

    /// Returns the answer of a model.
    pub(crate) async fn says(&self, model: &str) -> String {
        let reply = self.post(CHAT, &chat(model)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let reply = reply.json();
        assert_eq!(reply["model"], model);
        said(&reply)
    }

    /// A model's status in the list.
    pub(crate) async fn status(&self, model: &str) -> Value {
        let list = self.get("/v1/models").await.json();
        let found = list["data"]
            .as_array()
            .expect("a list")
            .iter()
            .find(|entry| entry["id"] == model);
        found.unwrap_or_else(|| panic!("{model} is not in {list}"))["status"].clone()
    }

    /// Waits until a model is what is expected.
    pub(crate) async fn wait_for(&self, model: &str, value: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.status(model).await["value"] != value {
            assert!(Instant::now() < deadline, "{model} does not become {value}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) async fn send(address: &str, path: &str, body: &Value) -> Exchange {
    let headers = [("content-type", "application/json")];
    Exchange::send(address, "POST", path, &headers, body.to_string().as_bytes()).await
}

pub(crate) fn chat(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "Who are you?" }] })
}

pub(crate) fn said(reply: &Value) -> String {
    reply["choices"][0]["message"]["content"]
        .as_str()
        .unwrap_or_default()
        .trim()
        .to_owned()
}
