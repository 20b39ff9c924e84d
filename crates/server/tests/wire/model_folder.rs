//! Models of a folder that come and go while it is served.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokenmill_server::{Listen, ModelLimits, ModelSpec, Models, Server, ServerConfig, models::ModelFolder};

use crate::{
    demo::demo_path,
    server::wait_until,
    several::{CHAT, Several, Speaker, chat},
    wire::Exchange,
};

/// A folder with what a test puts into it.
#[derive(Clone, Debug)]
struct Shelf {
    models: Arc<Mutex<Result<Vec<&'static str>, String>>>,
    n_looks: Arc<AtomicUsize>,
    /// Whether looking does not end, as on a file system that is away.
    hangs: Arc<AtomicBool>,
    n_alive: Arc<AtomicUsize>,
}

impl Shelf {
    fn put(&self, names: &[&'static str]) {
        *self.models.lock().expect("no test panics with it") = Ok(names.to_vec());
    }

    fn spec(&self, name: &str) -> ModelSpec {
        ModelSpec::new(name, Speaker::new(name, 4, &self.n_alive))
    }
}

impl ModelFolder for Shelf {
    fn models(&self) -> Result<Vec<ModelSpec>, String> {
        self.n_looks.fetch_add(1, Ordering::SeqCst);
        while self.hangs.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let models = self.models.lock().expect("no test panics with it").clone()?;
        Ok(models.into_iter().map(|name| self.spec(name)).collect())
    }
}

/// A server of a model that was named and of a folder with one.
async fn start(queue_timeout: Option<Duration>) -> (Shelf, Several) {
    let anna = Speaker::new("anna", 4, &Arc::default());
    start_with(&anna, queue_timeout).await
}

/// The same with a given model in the folder.
async fn start_with(anna: &Speaker, queue_timeout: Option<Duration>) -> (Shelf, Several) {
    let shelf = Shelf {
        models: Arc::new(Mutex::new(Ok(vec!["anna"]))),
        n_looks: Arc::default(),
        hangs: Arc::default(),
        n_alive: Arc::default(),
    };
    let mut specs = vec![shelf.spec("named"), ModelSpec::new("anna", anna.clone())];
    specs[1].is_of_folder = true;
    let config = ServerConfig {
        listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
        queue_timeout,
        ..ServerConfig::default()
    };
    let folder: Box<dyn ModelFolder> = Box::new(shelf.clone());
    let models = Models::with_folder(specs, Some(folder), ModelLimits::default(), config);
    let models = models.expect("the models have names of their own");
    let server = Server::bind(models.clone()).await.expect("a free port");
    let address = server.address();
    let address = address.rsplit('/').next().expect("an address").to_owned();
    let run = tokio::spawn(server.run());
    (shelf, Several { models, address, run })
}

async fn names(server: &Several, path: &str, list: &str, field: &str) -> Vec<String> {
    let reply = server.get(path).await.json();
    let entries = reply[list].as_array().expect("a list");
    let name = |entry: &Value| entry[field].as_str().unwrap_or_default().to_owned();
    entries.iter().map(name).collect()
}

async fn ids(server: &Several) -> Vec<String> {
    names(server, "/v1/models", "data", "id").await
}

/// Waits until the folder is looked through again.
async fn wait_for(server: &Several, expected: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while ids(server).await != expected {
        assert!(
            Instant::now() < deadline,
            "{:?} is not {expected:?}",
            ids(server).await
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_of_a_folder_come_and_go() {
    if demo_path().is_none() {
        return;
    }
    let (shelf, server) = start(None).await;
    assert_eq!(ids(&server).await, ["named", "anna"]);
    shelf.put(&["anna", "berta", "named"]);
    wait_for(&server, &["named", "anna", "berta"]).await;
    assert_eq!(server.says("berta").await, "berta");
    let tags = names(&server, "/api/tags", "models", "name").await;
    assert_eq!(tags, ["named:latest", "anna:latest", "berta:latest"]);
    // What is loaded stays until it is not.
    shelf.put(&[]);
    wait_for(&server, &["named", "berta"]).await;
    assert_eq!(server.post(CHAT, &chat("anna")).await.status, 404);
    assert_eq!(server.get("/v1/models/anna").await.status, 404);
    assert_eq!(server.says("berta").await, "berta");
    let figures = server.get("/metrics").await;
    assert!(
        !figures.text().contains("model_name=\"anna\",state"),
        "{}",
        figures.text()
    );
    let unloaded = server.post("/models/unload", &json!({ "model": "berta" })).await;
    assert_eq!(unloaded.status, 200, "{}", unloaded.text());
    wait_for(&server, &["named"]).await;
    let unknown = server.post(CHAT, &chat("berta")).await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.text().contains("named") && !unknown.text().contains("near it"));
    shelf.put(&["berta"]);
    wait_for(&server, &["named", "berta"]).await;
    assert_eq!(server.says("berta").await, "berta");
    // A folder that cannot be read changes nothing.
    *shelf.models.lock().expect("no test panics with it") = Err("it is gone".to_owned());
    let n_looks = shelf.n_looks.load(Ordering::SeqCst);
    let deadline = Instant::now() + Duration::from_secs(30);
    while shelf.n_looks.load(Ordering::SeqCst) == n_looks {
        assert!(Instant::now() < deadline, "the folder is not looked through");
        assert_eq!(ids(&server).await, ["named", "berta"]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(ids(&server).await, ["named", "berta"]);
    server.models.shutdown().begin();
    wait_until("nothing is left in memory", || server.run.is_finished()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_vanished_is_unknown_to_the_first_who_asks_for_it() {
    if demo_path().is_none() {
        return;
    }
    let anna = Speaker::new("anna", 4, &Arc::default());
    anna.fail(Some("cannot open anna.gguf"));
    let (shelf, server) = start_with(&anna, None).await;
    shelf.put(&[]);
    let gone = server.post(CHAT, &chat("anna")).await;
    assert_eq!(gone.status, 404, "{}", gone.text());
    // One that is there and cannot be loaded is another matter.
    let (shelf, server) = start_with(&anna, None).await;
    shelf.put(&["anna"]);
    let damaged = server.post(CHAT, &chat("anna")).await;
    assert_eq!(damaged.status, 503, "{}", damaged.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_name_has_the_folder_looked_through_at_most_once_a_second() {
    if demo_path().is_none() {
        return;
    }
    let (shelf, server) = start(None).await;
    let begun = Instant::now();
    // A name that is known waits for no look.
    assert_eq!(server.says("anna").await, "anna");
    assert_eq!(shelf.n_looks.load(Ordering::SeqCst), 0);
    shelf.put(&["anna", "berta"]);
    assert_eq!(server.says("berta").await, "berta");
    assert_eq!(shelf.n_looks.load(Ordering::SeqCst), 1);
    let n_asked = 50;
    for _ in 0..n_asked {
        assert_eq!(server.post(CHAT, &chat("nothing")).await.status, 404);
        ids(&server).await;
    }
    let n_most = 2 + begun.elapsed().as_secs() as usize;
    let n_looks = shelf.n_looks.load(Ordering::SeqCst);
    assert!(
        n_looks <= n_most && n_looks < n_asked,
        "{n_looks} in {:?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_hangs_is_looked_through_once_and_holds_nobody_up() {
    if demo_path().is_none() {
        return;
    }
    let (shelf, server) = start(Some(Duration::from_millis(200))).await;
    shelf.hangs.store(true, Ordering::SeqCst);
    shelf.put(&["anna", "berta"]);
    for n_clients in 1..=5 {
        // One that goes away while the folder is looked through.
        drop(Exchange::send(&server.address, "GET", "/v1/models", &[], b"").await);
        assert_eq!(ids(&server).await, ["named", "anna"], "client {n_clients}");
        assert_eq!(server.post(CHAT, &chat("berta")).await.status, 404);
    }
    assert_eq!(shelf.n_looks.load(Ordering::SeqCst), 1);
    shelf.hangs.store(false, Ordering::SeqCst);
    // What was begun for a client that is gone is served.
    wait_for(&server, &["named", "anna", "berta"]).await;
    assert_eq!(server.says("berta").await, "berta");
}
