//! Prompts of every kind of memory, from an engine to a folder and into another engine.

use std::{
    sync::atomic::AtomicUsize,
    time::{Duration, Instant},
};

use tokenmill_backend::{
    Adapter, AdapterWeight, Executor as _, FloatMatrix, KvType, MemoryFormat, PAGE_TOKENS, PageGroup,
};
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_sched::{
    Engine, EngineConfig, EngineStats, GenerateParams, KeptPage, Output, PageStore, SharedPageStore,
};
use tokenmill_testkit::{MEMORY_KINDS, Random, TinyModel, tiny_llama};

use super::*;
use crate::test_engines::{IDENTITY, bits, executor, model, options, params, random_tokens};

mod waiting;

fn open(path: &Path) -> PrefixFolder {
    PrefixFolder::open(path, 1 << 30, |line| panic!("{line}")).unwrap()
}

/// An engine, and its pages in the folder if it has one.
struct Running {
    engine: Engine,
    store: Option<Arc<ModelStore>>,
}

impl Running {
    fn new(model: &TinyModel, options: &ModelOptions, folder: Option<&PrefixFolder>) -> Self {
        Self::with_store(model, options, folder, |store| store as Arc<dyn PageStore>)
    }

    /// As [`Self::new`], with something between the engine and the folder.
    fn with_store(
        model: &TinyModel,
        options: &ModelOptions,
        folder: Option<&PrefixFolder>,
        wrap: impl FnOnce(Arc<ModelStore>) -> Arc<dyn PageStore>,
    ) -> Self {
        let executor = executor(model, options);
        let format = executor.memory_format().unwrap();
        let store = folder.map(|folder| Arc::new(folder.store_of(IDENTITY, &format).unwrap()));
        let config = EngineConfig {
            page_store: store.clone().map(|store| SharedPageStore(wrap(store))),
            ..EngineConfig::default()
        };
        Self {
            engine: Engine::start(executor, config),
            store,
        }
    }

    fn generate(&self, tokens: &[u32], max_tokens: usize) -> Output {
        self.engine.generate(tokens, &params(max_tokens)).unwrap()
    }

    fn figures(&self) -> PrefixFolderFigures {
        self.store.as_ref().unwrap().figures()
    }

    /// Ends it as a server does: remaining writes are done.
    fn end(self) {
        self.engine.drain();
        assert!(self.engine.wait_for_end(Duration::from_mins(1)));
    }

    /// Waits until all that no sequence uses is written.
    fn settle(&self) {
        self.wait_until(|running| {
            let figures = running.figures();
            std::thread::sleep(Duration::from_millis(40));
            let is_writing = PageStore::is_writing(&**running.store.as_ref().unwrap());
            figures == running.figures() && !is_writing
        });
    }

    #[track_caller]
    fn wait_until(&self, is_so: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < Duration::from_secs(30), "{:?}", self.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}

/// All files of pages below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = folders
        .filter(|path| path.is_dir())
        .flat_map(|path| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()))
        .collect();
    files.sort();
    files
}

#[test]
fn a_conversation_goes_on_after_a_restart_to_the_bit() {
    for (kind, (name, change)) in MEMORY_KINDS.iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let model = model(*change);
        for n_prompt in [5, 131, 200] {
            let prompt = random_tokens(kind as u64 * 10 + n_prompt as u64, n_prompt);
            let first = Running::new(&model, &options(80), Some(&open(folder.path())));
            let answer = first.generate(&prompt, 45);
            first.end();
            let turn = [&answer.tokens[..], &random_tokens(99, 7)].concat();

            let unbroken = Running::new(&model, &options(80), None);
            assert_eq!(bits(&unbroken.generate(&prompt, 45)), bits(&answer), "{name}");
            let expected = unbroken.generate(&turn, 40);

            let second = Running::new(&model, &options(80), Some(&open(folder.path())));
            let resumed = second.generate(&turn, 40);
            assert_eq!(bits(&resumed), bits(&expected), "{name}, {n_prompt} tokens");
            assert_eq!(
                resumed.usage.cached_tokens, expected.usage.cached_tokens,
                "{name}"
            );
            assert_eq!(second.figures().hits, 1, "{name}");
            // Pages that are in memory are not read again.
            second.generate(&turn, 1);
            assert_eq!(second.figures().hits, 1, "{name}");
            second.wait_until(|second| second.stats().n_pages_in_use == 0);
            second.end();
        }
    }
}

#[test]
fn what_lost_its_place_comes_back_and_a_kill_loses_nothing_that_was_idle() {
    for (name, change) in MEMORY_KINDS {
        let folder = tempfile::tempdir().unwrap();
        let model = model(*change);
        let prompts: Vec<Vec<u32>> = (0..4).map(|seed| random_tokens(seed, 150)).collect();
        let expected: Vec<_> = prompts
            .iter()
            .map(|prompt| bits(&Running::new(&model, &options(80), None).generate(prompt, 4)))
            .collect();
        let of_folder = open(folder.path());
        // Room for two of the four.
        let running = Running::new(&model, &options(24), Some(&of_folder));
        for round in 0..2 {
            for (prompt, expected) in prompts.iter().zip(&expected) {
                let output = running.generate(prompt, 4);
                assert_eq!(&bits(&output), expected, "{name}");
                let n_cached = if round == 0 { 0 } else { 144 };
                assert_eq!(output.usage.cached_tokens, n_cached, "{name}, round {round}");
                running.settle();
            }
        }
        assert!(running.figures().hits > 0, "{name}");
        // As after a kill: nothing is ended, and the files are those that were there.
        let killed = tempfile::tempdir().unwrap();
        for file in files(folder.path()) {
            let to = killed.path().join(file.strip_prefix(folder.path()).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(&file, to).unwrap();
        }
        fs::copy(folder.path().join(SECRET), killed.path().join(SECRET)).unwrap();
        let next = Running::new(&model, &options(80), Some(&open(killed.path())));
        for (prompt, expected) in prompts.iter().zip(&expected) {
            let output = next.generate(prompt, 4);
            assert_eq!(
                (&bits(&output), output.usage.cached_tokens),
                (expected, 144),
                "{name}"
            );
        }
        next.end();
        running.end();
    }
}

#[test]
fn cut_and_damaged_files_are_removed_and_the_prompt_is_computed() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(|_| {});
    let prompt = random_tokens(1, 200);
    let first = Running::new(&model, &options(80), Some(&open(folder.path())));
    let expected = bits(&first.generate(&prompt, 5));
    first.end();
    let whole = files(folder.path());
    assert_eq!(whole.len(), 12);
    let contents: Vec<Vec<u8>> = whole.iter().map(|file| fs::read(file).unwrap()).collect();
    let mut random = Random::new(3);
    let spoil: [fn(usize, &mut Vec<u8>); 4] = [
        |at, bytes| bytes[at] ^= 1,
        |at, bytes| bytes.truncate(at),
        |_, bytes| bytes.push(0),
        |_, bytes| bytes.clear(),
    ];
    for spoil in spoil {
        let victim = random.below(whole.len());
        let mut bytes = contents[victim].clone();
        spoil(random.below(bytes.len()), &mut bytes);
        fs::write(&whole[victim], bytes).unwrap();
        let second = Running::new(&model, &options(80), Some(&open(folder.path())));
        let output = second.generate(&prompt, 5);
        assert_eq!(bits(&output), expected);
        assert_eq!(output.usage.cached_tokens % 16, 0);
        assert_eq!(second.figures().refused_files, 1);
        // It is written again, and whole.
        second.end();
        assert_eq!(files(folder.path()), whole);
        let again: Vec<Vec<u8>> = whole.iter().map(|file| fs::read(file).unwrap()).collect();
        assert!(again == contents);
    }
    // Files of others stay, and half-written files are deleted.
    let notes = whole[0].with_file_name("notes.txt");
    fs::write(&notes, "mine").unwrap();
    let half = whole[0].with_file_name(".page.7-0.incomplete");
    fs::write(&half, "half").unwrap();
    drop(open(folder.path()));
    assert!(notes.exists() && !half.exists());
    // Names that were made with other numbers mean nothing.
    fs::write(folder.path().join(SECRET), "cut").unwrap();
    let other = Running::new(&model, &options(80), Some(&open(folder.path())));
    let output = other.generate(&prompt, 5);
    assert_eq!((bits(&output), output.usage.cached_tokens), (expected, 0));
}

#[test]
fn a_folder_that_cannot_be_written_to_is_one_warning() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(|_| {});
    let n_warnings = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&n_warnings);
    let of_folder = PrefixFolder::open(folder.path(), 1 << 30, move |line| {
        assert!(line.contains("cannot write to"), "{line}");
        counter.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap();
    let running = Running::new(&model, &options(80), Some(&of_folder));
    // A file is where the model's folder would be.
    fs::write(folder.path().join(format!("{:032x}", model_number(&running))), "").unwrap();
    for seed in 0..4 {
        let prompt = random_tokens(seed, 100);
        let expected = bits(&Running::new(&model, &options(80), None).generate(&prompt, 5));
        assert_eq!(bits(&running.generate(&prompt, 5)), expected);
        running.settle();
    }
    assert_eq!(n_warnings.load(Ordering::Relaxed), 1);
    let figures = running.figures();
    assert_eq!((figures.failed_writes, figures.written_pages), (1, 0));
    running.end();
}

fn model_number(running: &Running) -> u128 {
    running.store.as_ref().unwrap().model()
}

#[test]
fn a_folder_stays_below_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(|_| {});
    let first = Running::new(&model, &options(80), Some(&open(folder.path())));
    first.generate(&random_tokens(0, 200), 2);
    first.end();
    let n_bytes =
        |files: &[PathBuf]| -> u64 { files.iter().map(|file| file.metadata().unwrap().len()).sum() };
    let page_bytes = n_bytes(&files(folder.path())) / 12;
    let max_bytes = 5 * page_bytes + page_bytes / 2;
    let limited = || PrefixFolder::open(folder.path(), max_bytes, |line| panic!("{line}")).unwrap();
    let of_folder = limited();
    assert_eq!(files(folder.path()).len(), 5);
    let running = Running::new(&model, &options(80), Some(&of_folder));
    for seed in 0..4 {
        running.generate(&random_tokens(seed, 100), 2);
        running.settle();
        let files = files(folder.path());
        let figures = running.figures();
        assert!(n_bytes(&files) <= max_bytes);
        assert_eq!(
            (figures.kept_pages, figures.kept_bytes),
            (files.len() as u64, n_bytes(&files))
        );
    }
    // Smaller than one page.
    running.end();
    drop(of_folder);
    let tiny = PrefixFolder::open(folder.path(), 10, |line| panic!("{line}")).unwrap();
    assert_eq!(files(folder.path()).len(), 0);
    let running = Running::new(&model, &options(80), Some(&tiny));
    running.generate(&random_tokens(0, 100), 2);
    running.end();
    assert_eq!(files(folder.path()).len(), 0);
}

#[test]
fn one_process_has_a_folder_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path());
    let second = PrefixFolder::open(folder.path(), 1, |_| {});
    assert!(matches!(second, Err(Error::FolderInUse { .. })));
    drop(first);
    open(folder.path());
}

#[test]
fn a_folder_that_cannot_be_made_or_written_to_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    // Not by rights: a test may run as a user who has all of them.
    std::fs::create_dir(folder.path().join("lock")).unwrap();
    let locked = PrefixFolder::open(folder.path(), 1, |_| {}).unwrap_err();
    assert!(matches!(locked, Error::Write { .. }), "{locked}");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below = PrefixFolder::open(file.join("below"), 1, |_| {}).unwrap_err();
    assert!(matches!(below, Error::MakeFolder { .. }), "{below}");
}

#[test]
fn salts_and_other_arrangements_keep_pages_apart() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(|_| {});
    let prompt = random_tokens(1, 200);
    let of_salt = |cache_salt| GenerateParams {
        cache_salt,
        ..params(3)
    };
    let first = Running::new(&model, &options(80), Some(&open(folder.path())));
    first.engine.generate(&prompt, &of_salt(1)).unwrap();
    first.end();
    let of_folder = open(folder.path());
    let exact = ModelOptions {
        kv_type: tokenmill_backend::KvType::F32,
        ..options(80)
    };
    for (options, salt, n_cached) in [(options(80), 0, 0), (options(80), 1, 192), (exact, 1, 0)] {
        let running = Running::new(&model, &options, Some(&of_folder));
        let output = running.engine.generate(&prompt, &of_salt(salt)).unwrap();
        assert_eq!(output.usage.cached_tokens, n_cached, "salt {salt}");
        running.end();
    }
}

fn adapter(seed: u64) -> Arc<Adapter> {
    let descriptor = tiny_llama();
    let mut random = Random::new(seed);
    let (rank, n_in) = (4, descriptor.n_embd);
    let n_out = descriptor.layers[0].mixer.attention().unwrap().q_width();
    let mut matrix = |n: usize| FloatMatrix {
        ty: TensorType::F32,
        bytes: (0..n)
            .flat_map(|_| (0.5 * random.symmetric()).to_le_bytes())
            .collect(),
    };
    Arc::new(Adapter {
        weights: vec![AdapterWeight {
            tensor: "blk.0.attn_q.weight".to_owned(),
            scale: 2.0,
            rank,
            n_in,
            n_out,
            a: matrix(rank * n_in),
            b: matrix(n_out * rank),
        }],
    })
}

#[test]
fn the_pages_of_an_adapter_are_found_by_what_it_is_made_of() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(|_| {});
    let prompt = random_tokens(1, 200);
    let with = |adapter| GenerateParams {
        adapter: Some(adapter),
        ..params(5)
    };
    let first = Running::new(&model, &options(80), Some(&open(folder.path())));
    let poet = first.engine.add_adapter(adapter(1), 1.0).unwrap();
    let expected = bits(&first.engine.generate(&prompt, &with(poet)).unwrap());
    first.end();
    let second = Running::new(&model, &options(80), Some(&open(folder.path())));
    // It has another number now.
    let other = second.engine.add_adapter(adapter(2), 1.0).unwrap();
    let poet = second.engine.add_adapter(adapter(1), 1.0).unwrap();
    let weaker = second.engine.copy_adapter(poet, 0.5).unwrap();
    for (adapter, n_cached) in [(Some(other), 0), (Some(weaker), 0), (None, 0), (Some(poet), 192)] {
        let params = GenerateParams { adapter, ..params(5) };
        let output = second.engine.generate(&prompt, &params).unwrap();
        assert_eq!(output.usage.cached_tokens, n_cached, "{adapter:?}");
        assert_eq!(bits(&output) == expected, adapter == Some(poet), "{adapter:?}");
    }
    second.end();
}

#[test]
fn a_disk_that_hangs_is_not_waited_for_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let of_folder = open(folder.path());
    let format = MemoryFormat {
        arrangement: "test",
        key_type: KvType::F32,
        value_type: KvType::F32,
        page_bytes: [64, 0],
        state_bytes: 0,
    };
    let page_of = |number| KeptPage {
        name: KeptName {
            key: PageKey::from_number(number),
            kind: KeptKind::Page(PageGroup::Main),
        },
        tokens: [0; PAGE_TOKENS],
        bytes: vec![1; 64],
    };
    let mut store = of_folder.store_of(IDENTITY, &format).unwrap();
    // While the lock is held, nothing is written.
    let hangs = of_folder.folder.writing.lock().unwrap();
    store.keep(page_of(1));
    store.keep(page_of(2));
    store.end_within(Duration::from_millis(50));
    assert!(store.is_writing());
    drop(hangs);
    // The write that has begun is completed, and the rest is dropped.
    let began = Instant::now();
    while store.is_writing() {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(store.figures().written_pages, files(folder.path()).len() as u64);
    assert!(files(folder.path()).len() <= 1);
}

#[test]
fn a_store_without_threads_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let of_folder = PrefixFolder::open(folder.path(), 1 << 20, |_| {}).unwrap();
    let format = MemoryFormat {
        arrangement: "test",
        key_type: KvType::F32,
        value_type: KvType::F32,
        page_bytes: [64, 0],
        state_bytes: 0,
    };
    // More than any machine can map.
    let builder = || std::thread::Builder::new().stack_size(1 << 62);
    let store = ModelStore::new_by(Arc::clone(&of_folder.folder), 1, format, builder);
    assert!(store.is_err(), "{store:?}");
}

#[test]
fn memory_that_cannot_be_read_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&told);
    let of_folder = PrefixFolder::open(folder.path(), 1 << 30, move |line| {
        lines.lock().unwrap().push(line.to_owned());
    })
    .unwrap();
    let format = executor(&model(|_| {}), &options(80)).memory_format();
    assert!(of_folder.store_where(IDENTITY, format).is_some() && told.lock().unwrap().is_empty());
    assert!(of_folder.store_where(IDENTITY, None).is_none());
    let told = told.lock().unwrap();
    assert!(
        told.len() == 1 && told[0].starts_with("nothing of this model is kept in "),
        "{told:?}"
    );
}

/// Things in the way are left alone, and the other files are used.
#[test]
fn things_of_other_kinds_do_not_keep_a_folder_from_opening() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(|_| {});
    let first = Running::new(&model, &options(80), Some(&open(folder.path())));
    first.generate(&random_tokens(1, 100), 2);
    first.end();
    let pages = files(folder.path());
    // A file where a model's folder would be, and a folder where a page and a half written file would be.
    fs::write(folder.path().join("0".repeat(32)), "").unwrap();
    let of_model = pages[0].parent().unwrap();
    fs::create_dir(of_model.join(format!("{}.{}", "1".repeat(32), KINDS[0]))).unwrap();
    fs::create_dir(of_model.join(".page.7-0.incomplete")).unwrap();
    let second = Running::new(&model, &options(80), Some(&open(folder.path())));
    let figures = second.figures();
    assert_eq!(figures.kept_pages, pages.len() as u64);
    let again = second.generate(&random_tokens(1, 100), 2);
    assert_eq!(again.usage.cached_tokens, 96);
    second.end();
}
