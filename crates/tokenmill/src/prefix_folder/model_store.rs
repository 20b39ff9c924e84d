//! [`ModelStore`]: the pages of one model in a [`PrefixFolder`](super::PrefixFolder), as its engine uses
//! them.
//!
//! The folder itself has those of all models. Two threads touch the disk, one that writes and one that reads,
//! so that a waiting prompt is not delayed by writes. Invariants: a file has its name once all of it is
//! written; the bytes of all files, the one being written included, stay below the folder's limit; a failed
//! write costs its page alone.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use tokenmill_backend::{MemoryFormat, PAGE_TOKENS};
use tokenmill_sched::{KeptName, KeptPage, Offer, PageSink, PageStore};

use super::{Folder, create_folder, file_name, index::EntryName};
use crate::{
    atomic_write::write_unsynced,
    format_text::format_text,
    page_file::{EntrySums, PageFileHeader},
    session_error::SessionError,
};

/// Bytes that wait to be written at most.
const MAX_QUEUED_BYTES: u64 = 64 << 20;

/// Time without writes after one that failed, and without reads of a file that could not be read.
const PAUSE: Duration = Duration::from_secs(30);

/// How long dropping waits for a disk.
const PATIENCE: Duration = Duration::from_secs(10);

/// Counters of a model's pages in a folder since it was loaded, and the folder's current contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixFolderFigures {
    /// The number of pages and states written.
    pub written_pages: u64,
    /// The number of bytes of their files.
    pub written_bytes: u64,
    /// Pages and states that came back.
    pub read_pages: u64,
    /// Bytes of their files.
    pub read_bytes: u64,
    /// Prompts that something was read for.
    pub hits: u64,
    /// Files that were cut, damaged or another's, and were removed.
    pub refused_files: u64,
    /// Writes that failed, as those to a full disk do.
    pub failed_writes: u64,
    /// Files of this model in the folder.
    pub kept_pages: u64,
    /// Their bytes.
    pub kept_bytes: u64,
}

/// A command to the writer thread.
enum Order {
    Write(KeptPage),
    /// The file was used; its time is updated on the disk for the next process.
    Touch(EntryName),
}

type Wanted = (Vec<KeptPage>, Box<dyn PageSink>);

/// State that the calls and both threads share.
#[derive(Debug)]
struct Shared {
    folder: Arc<Folder>,
    /// The number that its folder is named by.
    model: u128,
    identity: u128,
    path: PathBuf,
    format: MemoryFormat,
    queued_bytes: AtomicU64,
    paused_until: Mutex<Option<Instant>>,
    /// No prompt waits for the pages that are read any more.
    stops_reading: AtomicBool,
    /// No one waits until all is written any more.
    stops_writing: AtomicBool,
    /// The counters since the load; the index counts the folder's contents.
    figures: Mutex<PrefixFolderFigures>,
}

/// The pages of one model. Dropping it waits until all is written, but not for longer than [`PATIENCE`].
pub(crate) struct ModelStore {
    shared: Arc<Shared>,
    /// These are `None` once it is dropped.
    orders: Option<mpsc::Sender<Order>>,
    fetches: Option<mpsc::Sender<Wanted>>,
    threads: Vec<thread::JoinHandle<()>>,
    /// Gives nothing, and ends with the last of the threads.
    running: Mutex<mpsc::Receiver<()>>,
}

impl ModelStore {
    /// Starts the threads of a model's pages.
    ///
    /// # Errors
    /// Fails if the system starts none.
    pub(super) fn new(folder: Arc<Folder>, identity: u128, format: MemoryFormat) -> io::Result<Self> {
        Self::new_by(folder, identity, format, thread::Builder::new)
    }

    /// Does the same with threads of these properties.
    pub(super) fn new_by(
        folder: Arc<Folder>,
        identity: u128,
        format: MemoryFormat,
        builder: fn() -> thread::Builder,
    ) -> io::Result<Self> {
        let model = Folder::model_of(identity, &format);
        let shared = Arc::new(Shared {
            path: folder.path_of(model),
            folder,
            model,
            identity,
            format,
            queued_bytes: AtomicU64::new(0),
            paused_until: Mutex::default(),
            stops_reading: AtomicBool::new(false),
            stops_writing: AtomicBool::new(false),
            figures: Mutex::default(),
        });
        let (orders, to_write) = mpsc::channel();
        let (fetches, to_read) = mpsc::channel();
        let (runs, running) = mpsc::channel();
        let writer = builder().spawn({
            let (shared, runs) = (Arc::clone(&shared), runs.clone());
            move || {
                shared.write_all(&to_write);
                drop((shared, runs));
            }
        })?;
        // Without a reader the writer ends too: its channel of orders has no other end any more.
        let reader = builder().spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.read_all(&to_read);
                drop((shared, runs));
            }
        })?;
        Ok(Self {
            shared,
            orders: Some(orders),
            fetches: Some(fetches),
            threads: vec![writer, reader],
            running: Mutex::new(running),
        })
    }

    pub(crate) fn figures(&self) -> PrefixFolderFigures {
        let kept = self.shared.folder.index().amount_of(self.shared.model);
        PrefixFolderFigures {
            kept_pages: kept.n_files,
            kept_bytes: kept.n_bytes,
            ..*self.shared.figures()
        }
    }

    /// The number that its folder is named by.
    #[cfg(test)]
    pub(super) fn model(&self) -> u128 {
        self.shared.model
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The thread ends after this is dropped.
            let _ = orders.send(order);
        }
    }

    /// Does the remaining writes. Threads that have not ended within this time are left alone: they end once the disk answers.
    pub(super) fn end_within(&mut self, patience: Duration) {
        (self.orders, self.fetches) = (None, None);
        self.shared.stops_reading.store(true, Ordering::Relaxed);
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        if running.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
            self.shared.stops_writing.store(true, Ordering::Relaxed);
            self.threads.clear();
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported its panic already.
            let _ = thread.join();
        }
    }
}

impl Drop for ModelStore {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.end_within(PATIENCE);
        }
    }
}

impl fmt::Debug for ModelStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ModelStore").field(&self.shared.path).finish()
    }
}

impl PageStore for ModelStore {
    fn secret(&self) -> [u64; 4] {
        self.shared.folder.secret
    }

    fn contains(&self, name: KeptName) -> bool {
        self.shared
            .folder
            .index()
            .contains(&self.shared.entry(name), Instant::now())
    }

    fn offer(&self, name: KeptName) -> Offer {
        let shared = &self.shared;
        let entry = shared.entry(name);
        let mut index = shared.folder.index();
        if index.contains(&entry, Instant::now()) {
            if index.touch(&entry, SystemTime::now()) {
                drop(index);
                self.order(Order::Touch(entry));
            }
            return Offer::Leave;
        }
        let n_bytes = shared.file_bytes(name);
        if index.is_pending(&entry) || n_bytes > shared.folder.max_bytes || shared.is_paused() {
            return Offer::Leave;
        }
        let queued_bytes = shared.queued_bytes.load(Ordering::Relaxed);
        if queued_bytes > 0 && queued_bytes + n_bytes > MAX_QUEUED_BYTES {
            return Offer::Later;
        }
        Offer::Take
    }

    fn keep(&self, page: KeptPage) {
        let shared = &self.shared;
        if shared.folder.index().begin(shared.entry(page.name)) {
            (shared.queued_bytes).fetch_add(shared.file_bytes(page.name), Ordering::Relaxed);
            self.order(Order::Write(page));
        }
    }

    fn is_writing(&self) -> bool {
        self.shared.queued_bytes.load(Ordering::Relaxed) > 0
    }

    fn fetch(&self, wanted: Vec<KeptPage>, sink: Box<dyn PageSink>) {
        if let Some(fetches) = &self.fetches {
            // Where the thread has ended, the sink is dropped and says so.
            let _ = fetches.send((wanted, sink));
        }
    }
}

impl Shared {
    fn entry(&self, name: KeptName) -> EntryName {
        let model = self.model;
        EntryName { model, name }
    }

    /// The header of the file of a page with these tokens.
    fn header(&self, name: KeptName, tokens: [u32; PAGE_TOKENS]) -> PageFileHeader {
        PageFileHeader {
            identity: self.identity,
            format: format_text(&self.format),
            tokens: tokens.to_vec(),
            entries: vec![name],
            notes: Vec::new(),
        }
    }

    fn file_bytes(&self, name: KeptName) -> u64 {
        self.header(name, [0; PAGE_TOKENS]).file_bytes(&self.format)
    }

    fn file_of(&self, entry: &EntryName) -> PathBuf {
        self.folder.path_of(entry.model).join(file_name(entry.name))
    }

    fn figures(&self) -> MutexGuard<'_, PrefixFolderFigures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn paused_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.paused_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_paused(&self) -> bool {
        self.paused_until().is_some_and(|until| Instant::now() < until)
    }

    fn write_all(&self, orders: &mpsc::Receiver<Order>) {
        for order in orders {
            let stops = self.stops_writing.load(Ordering::Relaxed);
            let page = match order {
                Order::Touch(_) if stops => continue,
                Order::Touch(entry) => {
                    // It may be gone, or be another user's: then its time stays.
                    let file = File::open(self.file_of(&entry));
                    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
                    continue;
                }
                Order::Write(page) => page,
            };
            let entry = self.entry(page.name);
            let n_bytes = self.file_bytes(page.name);
            let written = if stops || self.is_paused() {
                None
            } else {
                Some(self.write(&entry, &page, n_bytes))
            };
            match written {
                None => {}
                Some(Ok(())) => {
                    let mut figures = self.figures();
                    figures.written_pages += 1;
                    figures.written_bytes += n_bytes;
                }
                Some(Err(error)) => {
                    self.figures().failed_writes += 1;
                    *self.paused_until() = Some(Instant::now() + PAUSE);
                    self.folder.warn_once(&self.path, &error);
                }
            }
            self.folder.index().end(&entry);
            self.queued_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
        }
    }

    fn write(&self, entry: &EntryName, page: &KeptPage, n_bytes: u64) -> io::Result<()> {
        // It guards no data.
        let _room = (self.folder.writing.lock()).unwrap_or_else(PoisonError::into_inner);
        self.make_room(n_bytes)?;
        // Someone may have removed it.
        create_folder(&self.path)?;
        write_unsynced(&self.file_of(entry), |file| {
            let head = self.header(page.name, page.tokens).to_bytes();
            let head = head.expect("one page is not too large");
            file.write_all(&head)?;
            EntrySums::after(&head).write(file, &page.bytes)
        })?;
        (self.folder.index()).insert(*entry, n_bytes, SystemTime::now());
        Ok(())
    }

    /// Removes the least recently used files, until `n_bytes` more fit.
    fn make_room(&self, n_bytes: u64) -> io::Result<()> {
        loop {
            let oldest = (self.folder.index()).oldest_beyond(self.folder.max_bytes - n_bytes);
            let Some(oldest) = oldest else { return Ok(()) };
            self.forget(&oldest)?;
        }
    }

    fn forget(&self, entry: &EntryName) -> io::Result<()> {
        match fs::remove_file(self.file_of(entry)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.folder.index().remove(entry);
        Ok(())
    }

    fn read_all(&self, fetches: &mpsc::Receiver<Wanted>) {
        for (wanted, mut sink) in fetches {
            let mut n_read = 0;
            for page in &wanted {
                if self.stops_reading.load(Ordering::Relaxed) {
                    break;
                }
                let Some(bytes) = self.read(page) else { break };
                n_read += 1;
                if !sink.push(bytes) {
                    break;
                }
            }
            if n_read > 0 {
                self.figures().hits += 1;
            }
        }
    }

    /// The bytes of a page; a file that is not the one is removed.
    fn read(&self, page: &KeptPage) -> Option<Vec<u8>> {
        let entry = self.entry(page.name);
        let path = self.file_of(&entry);
        let read = read_file(&path, |file, found| {
            let header = PageFileHeader::read(file, found)?;
            header.check(self.identity, &self.format, found)?;
            if header != self.header(page.name, page.tokens) {
                return Err(SessionError::Damaged);
            }
            EntrySums::after(&header.to_bytes()?).read(file, page.name.kind.n_bytes(&self.format))
        });
        match read {
            Ok(bytes) => {
                let mut figures = self.figures();
                figures.read_pages += 1;
                figures.read_bytes += self.file_bytes(page.name);
                drop(figures);
                (self.folder.index()).touch(&entry, SystemTime::now());
                Some(bytes)
            }
            Err(SessionError::Io(_)) => {
                let is_there = match fs::symlink_metadata(&path) {
                    Ok(metadata) => metadata.is_file(),
                    Err(error) => error.kind() != io::ErrorKind::NotFound,
                };
                let mut index = self.folder.index();
                if is_there {
                    // It takes room all the same, and another time it may be read.
                    index.set_unreadable(&entry, Instant::now() + PAUSE);
                } else {
                    // Someone removed it, or put something in its place that is not ours to remove.
                    index.remove(&entry);
                }
                None
            }
            Err(_) => {
                self.figures().refused_files += 1;
                // Else it would be refused again and again.
                let _ = self.forget(&entry);
                None
            }
        }
    }
}

fn read_file<T>(
    path: &Path,
    read: impl FnOnce(&mut File, u64) -> Result<T, SessionError>,
) -> Result<T, SessionError> {
    // Asked first: to open a pipe is to wait for its writer.
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_file() {
        return Err(SessionError::Io(io::ErrorKind::InvalidInput.into()));
    }
    let mut file = File::open(path)?;
    let read = read(&mut file, metadata.len())?;
    // The order of use for the next process. It is a file of another user where this fails.
    let _ = file.set_modified(SystemTime::now());
    Ok(read)
}
