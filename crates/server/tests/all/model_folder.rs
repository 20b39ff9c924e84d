//! Models of a folder that come and go while it is served.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Value, json};
use tokenmill_server::{
    Listen, ModelLimits, ModelSpec, Models, Server, ServerConfig,
    models::{FileStamp, FolderError, FolderManager, ModelFolder, PullWatch, Role},
};

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
    /// When and as which file all models were written last.
    written: Arc<Mutex<(Option<SystemTime>, u64)>>,
    /// Why nothing is removed.
    refusal: Arc<Mutex<Option<FolderError>>>,
    /// Removals that have begun.
    n_removals: Arc<AtomicUsize>,
    /// Whether removing does not end.
    removal_hangs: Arc<AtomicBool>,
}

impl Shelf {
    fn holding(names: Vec<&'static str>) -> Self {
        Self {
            models: Arc::new(Mutex::new(Ok(names))),
            n_looks: Arc::default(),
            hangs: Arc::default(),
            n_alive: Arc::default(),
            written: Arc::default(),
            refusal: Arc::default(),
            n_removals: Arc::default(),
            removal_hangs: Arc::default(),
        }
    }

    /// A model of the folder, as it is found at the start.
    fn spec_of(&self, name: &str, model: &Speaker) -> ModelSpec {
        let mut spec = ModelSpec::new(name, model.clone());
        spec.is_of_folder = true;
        spec.stamps = vec![self.stamp()];
        spec
    }

    fn put(&self, names: &[&'static str]) {
        *self.models.lock().expect("no test panics with it") = Ok(names.to_vec());
    }

    fn spec(&self, name: &str) -> ModelSpec {
        let mut spec = ModelSpec::new(name, Speaker::new(name, 4, &self.n_alive));
        spec.stamps = vec![self.stamp()];
        spec
    }

    fn stamp(&self) -> FileStamp {
        let (written, inode) = *self.written.lock().expect("no test panics with it");
        FileStamp {
            written,
            n_bytes: 1,
            inode: Some(inode),
        }
    }

    /// Has other files in the place of those of all models.
    fn replace(&self, written: SystemTime, inode: u64) {
        *self.written.lock().expect("no test panics with it") = (Some(written), inode);
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

    fn manager(self: Arc<Self>) -> Option<Arc<dyn FolderManager>> {
        Some(self)
    }
}

impl FolderManager for Shelf {
    fn pull(&self, _name: &str, _watch: &dyn PullWatch) -> Result<(), FolderError> {
        Err(FolderError::Busy {
            reason: "there is no network",
        })
    }

    fn remove(&self, name: &str) -> Result<(), FolderError> {
        self.n_removals.fetch_add(1, Ordering::SeqCst);
        while self.removal_hangs.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(refusal) = self.refusal.lock().expect("no test panics with it").clone() {
            return Err(refusal);
        }
        let mut models = self.models.lock().expect("no test panics with it");
        models
            .as_mut()
            .expect("the folder can be read")
            .retain(|own| *own != name);
        Ok(())
    }

    fn has_pulled(&self, _name: &str) -> bool {
        false
    }

    fn remove_partial(&self, _name: &str) -> Result<bool, FolderError> {
        Ok(false)
    }
}

/// A server of a model that was named and of a folder with one.
async fn start(queue_timeout: Option<Duration>) -> (Shelf, Several) {
    let anna = Speaker::new("anna", 4, &Arc::default());
    start_with(&anna, queue_timeout).await
}

/// The same with a given model in the folder.
async fn start_with(anna: &Speaker, queue_timeout: Option<Duration>) -> (Shelf, Several) {
    let shelf = Shelf::holding(vec!["anna"]);
    let specs = vec![shelf.spec("named"), shelf.spec_of("anna", anna)];
    let server = serve(&shelf, specs, queue_timeout).await;
    (shelf, server)
}

/// A server of models and a folder.
async fn serve(shelf: &Shelf, specs: Vec<ModelSpec>, queue_timeout: Option<Duration>) -> Several {
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
    Several { models, address, run }
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
    // A loaded model stays until it is unloaded.
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
async fn a_model_is_unloaded_when_it_has_been_removed_and_not_when_that_is_refused() {
    if demo_path().is_none() {
        return;
    }
    let anna = Speaker::new("anna", 4, &Arc::default());
    let n_alive = || anna.0.n_alive.load(Ordering::SeqCst);
    let (shelf, server) = start_with(&anna, None).await;
    assert_eq!(server.says("anna").await, "anna");
    let body = json!({ "model": "anna" }).to_string();
    let headers = [("Content-Type", "application/json")];
    let delete = async || {
        Exchange::send(
            &server.address,
            "DELETE",
            "/api/delete",
            &headers,
            body.as_bytes(),
        )
        .await
    };
    let refuse = |refusal| *shelf.refusal.lock().expect("no test panics with it") = refusal;
    for (refusal, status) in [
        (
            FolderError::Busy {
                reason: "a download of this model is running",
            },
            409,
        ),
        (
            FolderError::Failed {
                reason: "the disk is away".to_owned(),
            },
            500,
        ),
    ] {
        refuse(Some(refusal));
        let refused = delete().await.reply().await;
        assert_eq!(refused.status, status, "{}", refused.text());
        assert_eq!(server.says("anna").await, "anna");
        assert_eq!((anna.n_loads(), n_alive()), (1, 1), "it stayed loaded");
    }
    refuse(None);
    // The client goes away while the files are removed.
    shelf.removal_hangs.store(true, Ordering::SeqCst);
    let n_removals = || shelf.n_removals.load(Ordering::SeqCst);
    let asked = delete().await;
    wait_until("its files are removed", || n_removals() == 3).await;
    drop(asked);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(n_alive(), 1, "its files are still there");
    shelf.removal_hangs.store(false, Ordering::SeqCst);
    wait_until("it is unloaded", || n_alive() == 0).await;
    wait_for(&server, &["named"]).await;
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
async fn a_server_whose_last_model_vanished_has_none_for_any_request() {
    if demo_path().is_none() {
        return;
    }
    let anna = Speaker::new("anna", 4, &Arc::default());
    anna.fail(Some("cannot open anna.gguf"));
    let shelf = Shelf::holding(vec![]);
    for specs in [vec![shelf.spec_of("anna", &anna)], vec![]] {
        let server = serve(&shelf, specs, None).await;
        for (body, expected) in [
            (
                json!({ "messages": [{ "role": "user", "content": "Hi" }] }),
                "no model is served",
            ),
            (chat("anna"), "the model `anna` is not served here; no model is"),
        ] {
            let gone = server.post(CHAT, &body).await;
            assert_eq!(gone.status, 404, "{}", gone.text());
            assert!(gone.text().contains(expected), "{}", gone.text());
        }
        assert_eq!(ids(&server).await, Vec::<String>::new());
        // A model that comes is found by the next request.
        shelf.put(&["berta"]);
        wait_for(&server, &["berta"]).await;
        let body = json!({ "messages": [{ "role": "user", "content": "Who are you?" }] });
        let reply = server.post(CHAT, &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        shelf.put(&[]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_vanished_just_after_a_look_is_unknown_too() {
    if demo_path().is_none() {
        return;
    }
    let anna = Speaker::new("anna", 4, &Arc::default());
    let (shelf, server) = start_with(&anna, None).await;
    assert_eq!(ids(&server).await, ["named", "anna"]);
    assert_eq!(shelf.n_looks.load(Ordering::SeqCst), 1);
    anna.fail(Some("cannot open anna.gguf"));
    shelf.put(&[]);
    let gone = server.post(CHAT, &chat("anna")).await;
    assert_eq!(gone.status, 404, "{}", gone.text());
    assert_eq!(shelf.n_looks.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_whose_files_were_replaced_is_loaded_again() {
    if demo_path().is_none() {
        return;
    }
    let anna = Speaker::new("anna", 4, &Arc::default());
    let (shelf, server) = start_with(&anna, None).await;
    for _ in 0..5 {
        assert_eq!(server.says("anna").await, "anna");
    }
    assert_eq!(anna.n_loads(), 1);
    // Moved into its place: another file that is older.
    let replaced_and_asked = async |written: SystemTime, inode: u64, n_loads: usize| {
        shelf.replace(written, inode);
        let deadline = Instant::now() + Duration::from_secs(30);
        while anna.n_loads() < n_loads {
            assert!(Instant::now() < deadline, "the model is not loaded again");
            assert_eq!(server.says("anna").await, "anna");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // It is left alone until it rests, whatever its own time says.
    for (written, n_loads) in [(SystemTime::UNIX_EPOCH, 2), (SystemTime::now(), 3)] {
        let replaced = Instant::now();
        replaced_and_asked(written, 7 + n_loads as u64, n_loads).await;
        assert!(replaced.elapsed() >= Duration::from_secs(2));
    }
    for _ in 0..5 {
        assert_eq!(server.says("anna").await, "anna");
    }
    assert_eq!(anna.n_loads(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_name_waits_no_longer_than_one_wait_may_last() {
    const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);
    if demo_path().is_none() {
        return;
    }
    let n_alive = Arc::default();
    let (busy, slow) = (
        Speaker::new("busy", 4, &n_alive),
        Speaker::new("slow", 4, &n_alive),
    );
    // The models are read when this is loaded.
    busy.load_takes(Duration::from_millis(1500));
    slow.load_takes(Duration::from_secs(20));
    let mut specs = vec![ModelSpec::new("slow", slow), ModelSpec::new("busy", busy)];
    specs[1].is_pinned = true;
    specs[1].role = Role::Embedding;
    let config = ServerConfig {
        listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
        queue_timeout: Some(QUEUE_TIMEOUT),
        ..ServerConfig::default()
    };
    let models = Models::new(specs, ModelLimits::default(), config).expect("they have names");
    let server = Server::bind(models.clone()).await.expect("a free port");
    let address = server.address();
    let address = address.rsplit('/').next().expect("an address").to_owned();
    let run = tokio::spawn(server.run());
    let server = Several { models, address, run };
    let begun = Instant::now();
    let mut nameless = chat("slow");
    nameless.as_object_mut().expect("an object").remove("model");
    let late = server.post(CHAT, &nameless).await;
    assert_eq!(late.status, 504, "{}", late.text());
    let waited = begun.elapsed();
    assert!(waited < QUEUE_TIMEOUT + Duration::from_secs(1), "{waited:?}");
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
    // The look that a departed client began finishes, and the models it found are served.
    wait_for(&server, &["named", "anna", "berta"]).await;
    assert_eq!(server.says("berta").await, "berta");
}
