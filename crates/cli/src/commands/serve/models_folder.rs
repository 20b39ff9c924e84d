//! [`ModelsFolder`]: the models of a folder, at the start and whenever the server reads it again.
//!
//! Models that clients have downloaded are in hidden folders of it, as `pull` stores them elsewhere. Named
//! models, in contrast, exist and keep their names. Invariants: a path keeps its first name as long as it
//! exists; a file whose name or header shows that it is not a model is not listed, but an unreadable file is,
//! so that its requests get the reason.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tokenmill::{
    LoadOptions,
    hub::{SourceName, is_model_file_name},
    sessions::PrefixFolder,
};
use tokenmill_gguf::{GgufFile, part_of_name};
use tokenmill_server::{
    ModelSpec,
    models::{FileStamp, FolderError, FolderManager, ModelFolder, PullWatch, Role},
};

use super::{Args, found_model::FoundModel, of_option, pulled_models::PulledModels};
use crate::{
    failure::Failure,
    model_name::{FetchArgs, served_name},
};

/// Values of `general.type` in files that accompany a model.
const OTHER_TYPES: [&str; 4] = ["adapter", "imatrix", "mmproj", "clip-vision"];

/// A folder of models.
#[derive(Debug)]
pub(super) struct ModelsFolder {
    folder: PathBuf,
    options: LoadOptions,
    fetch: FetchArgs,
    pulled: PulledModels,
    known: Mutex<Known>,
}

/// The results of earlier looks at the folder.
#[derive(Debug, Default)]
struct Known {
    /// The name of each path that is there.
    names: HashMap<PathBuf, String>,
    /// The names and other identifiers of the models outside the folder, and the names of adapters.
    reserved: HashSet<String>,
    /// The paths that were reported to have no name.
    nameless: HashSet<PathBuf>,
    /// The models that clients have downloaded, by the names that they are served under.
    pulled: HashMap<String, SourceName>,
    headers: Headers,
}

/// Whether files are models, by when they were written and how long they are.
type Headers = HashMap<PathBuf, (Option<FileStamp>, bool)>;

impl ModelsFolder {
    /// # Errors
    /// Options that cannot be granted.
    pub(super) fn open(args: &Args, kept: Option<&PrefixFolder>, folder: &Path) -> Result<Self, Failure> {
        let flags = &args.model_flags.flags;
        let mut options = flags.unresolved_options()?;
        options.prefix_folder = kept.cloned();
        let fetch = flags.load.fetch.clone();
        Ok(Self {
            folder: folder.to_owned(),
            options,
            pulled: PulledModels::below(folder, fetch.settings(), args.several.is_managed()),
            fetch,
            known: Mutex::default(),
        })
    }

    /// The models at the start.
    ///
    /// # Errors
    /// A folder that cannot be read, and one without models.
    pub(super) fn found(&self) -> Result<Vec<FoundModel>, Failure> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = models_in(&self.folder, &mut known.headers)
            .map_err(|failure| of_option("--models-dir", failure))?;
        let pulled = known.pulled_names(self.pulled.found());
        if paths.is_empty() && pulled.is_empty() && !self.pulled.is_managed() {
            let message = format!("there is no model in {}", self.folder.display());
            let failure = Failure::input(message);
            return Err(failure.hint("GGUF files are looked for in it and in the folders in it"));
        }
        let found = paths.into_iter().map(|path| {
            let name = served_name(&path, &path);
            self.model(path, name)
        });
        let pulled = pulled.into_iter().map(|(name, path)| self.model(path, name));
        Ok(found.chain(pulled).collect())
    }

    /// The same, with the names of all models of the server.
    pub(super) fn knowing(self, specs: &[ModelSpec]) -> Self {
        let mut known = self.known.into_inner().unwrap_or_else(PoisonError::into_inner);
        for spec in specs {
            known.reserved.extend(spec.adapters.iter().cloned());
            if spec.is_of_folder {
                // A downloaded one has its name from its source.
                let is_pulled = spec.names.iter().any(|name| known.pulled.contains_key(name));
                if let (false, Some(given), Some(name)) = (is_pulled, &spec.given, spec.names.first()) {
                    known.names.insert(PathBuf::from(given), name.clone());
                }
            } else {
                let names = spec.names.iter().chain(&spec.given);
                known.reserved.extend(names.cloned());
            }
        }
        Self {
            known: Mutex::new(known),
            ..self
        }
    }

    fn model(&self, path: PathBuf, name: String) -> FoundModel {
        FoundModel {
            name,
            given: path.clone(),
            path,
            options: self.options.clone(),
            role: Role::Chat,
            is_preloaded: false,
            is_of_folder: true,
        }
    }
}

impl Known {
    /// Returns whether a model is called so, or an adapter. Requests may also call a model by its path.
    fn is_taken(&self, name: &str) -> bool {
        self.reserved.contains(name)
            || self.pulled.contains_key(name)
            || (self.names.iter()).any(|(path, own)| own == name || path == Path::new(name))
    }

    /// Forgets models that are gone, so that their names are free.
    fn forget_others(&mut self, paths: &[PathBuf], pulled: &[(SourceName, PathBuf)]) {
        let sources: HashSet<String> = pulled.iter().map(|(source, _)| source.shown()).collect();
        let paths: HashSet<&PathBuf> = (paths.iter())
            .chain(pulled.iter().map(|(_, path)| path))
            .collect();
        self.names.retain(|path, _| paths.contains(path));
        self.nameless.retain(|path| paths.contains(path));
        self.pulled.retain(|name, _| sources.contains(name));
    }

    /// Returns the name of a path: its earlier name, else the name of its file, with its folder's name before
    /// it if that is taken. Returns `None` if both are taken, and warns of it once.
    fn name(&mut self, path: &Path) -> Option<String> {
        if let Some(name) = self.names.get(path) {
            return Some(name.clone());
        }
        let own = served_name(path, path);
        let above = path.parent().and_then(Path::file_name);
        let with_folder = above.map(|folder| format!("{}/{own}", folder.to_string_lossy()));
        let both = [Some(own), with_folder].into_iter().flatten();
        let Some(name) = both.clone().find(|name| !self.is_taken(name)) else {
            if self.nameless.insert(path.to_owned()) {
                let names: Vec<String> = both.collect();
                tracing::warn!(
                    path = %path.display(),
                    "not served: other models are called {}; rename the file to distinguish it",
                    names.join(" and ")
                );
            }
            return None;
        };
        self.names.insert(path.to_owned(), name.clone());
        Some(name)
    }

    /// Names the downloaded models as their sources do. One whose name another model has is not served.
    fn pulled_names(&mut self, found: Vec<(SourceName, PathBuf)>) -> Vec<(String, PathBuf)> {
        let mut named = Vec::new();
        for (source, path) in found {
            let name = source.shown();
            if self.pulled.contains_key(&name) || !self.is_taken(&name) {
                self.pulled.insert(name.clone(), source);
                named.push((name, path));
            } else if self.nameless.insert(path.clone()) {
                tracing::warn!(path = %path.display(), "not served: another model is called {name}");
            }
        }
        named
    }
}

impl ModelFolder for ModelsFolder {
    fn models(&self) -> Result<Vec<ModelSpec>, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = models_in(&self.folder, &mut known.headers).map_err(|failure| failure.message_line())?;
        let found = self.pulled.found();
        known.forget_others(&paths, &found);
        let specs = paths.into_iter().filter_map(|path| {
            let name = known.name(&path)?;
            Some(self.model(path, name).spec(&self.fetch))
        });
        let mut specs: Vec<ModelSpec> = specs.collect();
        let pulled = known.pulled_names(found);
        specs.extend((pulled.into_iter()).map(|(name, path)| self.model(path, name).spec(&self.fetch)));
        Ok(specs)
    }

    fn manager(self: Arc<Self>) -> Option<Arc<dyn FolderManager>> {
        if self.pulled.is_managed() {
            Some(self)
        } else {
            None
        }
    }
}

impl FolderManager for ModelsFolder {
    fn pull(&self, name: &str, watch: &dyn PullWatch) -> Result<(), FolderError> {
        self.pulled.pull(name, watch, |name| {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.is_taken(name) && !known.pulled.contains_key(name)
        })
    }

    fn has_pulled(&self, name: &str) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.pulled.contains_key(name)
    }

    fn remove_partial(&self, name: &str) -> Result<bool, FolderError> {
        self.pulled.remove_partial(name)
    }

    fn remove(&self, name: &str) -> Result<(), FolderError> {
        let (source, path) = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let path = known.names.iter().find(|(_, own)| *own == name);
            (
                known.pulled.get(name).cloned(),
                path.map(|(path, _)| path.clone()),
            )
        };
        // A removal may wait for a download: the table of names is free meanwhile.
        if let Some(source) = source {
            return self.pulled.remove(&source);
        }
        let Some(path) = path else {
            return Err(FolderError::Refused {
                reason: format!("`{name}` is not in the folder of models"),
            });
        };
        if !lies_in(&path, &self.folder) {
            return Err(FolderError::Refused {
                reason: format!("`{name}` is outside the folder of models, which only links to it"),
            });
        }
        remove_model(&path).map_err(|error| {
            tracing::warn!(path = %path.display(), "not removed: {error}");
            FolderError::Failed {
                reason: format!("`{name}` cannot be removed: {}", error.kind()),
            }
        })
    }
}

/// Returns whether the entry itself, not the target of a link, lies in a folder after all links on the way are followed.
fn lies_in(path: &Path, folder: &Path) -> bool {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    let folder = folder.canonicalize().ok();
    parent
        .zip(folder)
        .is_some_and(|(parent, folder)| parent.starts_with(folder))
}

/// Removes the files of a model: a folder, or a file with its other parts. A link is removed, and not its target.
fn remove_model(path: &Path) -> io::Result<()> {
    if path.is_dir() && !path.is_symlink() {
        return fs::remove_dir_all(path);
    }
    let parts = files_of(path);
    parts.iter().try_for_each(fs::remove_file)
}

/// The models in a folder and in the folders in it, by name.
fn models_in(folder: &Path, headers: &mut Headers) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    let mut seen = Headers::new();
    let mut take = |path: &Path| is_model_file(path) && is_model_header(path, headers, &mut seen);
    for path in entries(folder)? {
        if take(&path) {
            found.push(path);
        } else if path.is_dir() {
            // One that may not be read has no model that can be.
            let files: Vec<PathBuf> = entries(&path).unwrap_or_default();
            let models: Vec<&PathBuf> = files.iter().filter(|file| take(file)).collect();
            let has = |name: &str| files.iter().any(|file| file.ends_with(name));
            if models.is_empty() && has("config.json") && !has("adapter_config.json") {
                found.push(path);
            } else {
                found.extend(models.into_iter().cloned());
            }
        }
    }
    // Files that no longer exist are forgotten.
    *headers = seen;
    Ok(found)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| Failure::unreadable(folder, &error))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// The stamps of a model's files, by their names: of all files in its folder, or of the file and its other parts.
pub(super) fn stamps_of(path: &Path) -> Vec<FileStamp> {
    let files = if path.is_dir() {
        entries(path).unwrap_or_default()
    } else {
        files_of(path)
    };
    files.iter().filter_map(|file| stamp(file)).collect()
}

/// Lists a file of a model and its other parts.
fn files_of(path: &Path) -> Vec<PathBuf> {
    let begin = |path: &Path| {
        let (begin, _, n_parts) = part_of_name(path.file_name()?.to_str()?.strip_suffix(".gguf")?)?;
        Some((begin.to_owned(), n_parts))
    };
    if let (Some(own), Some(folder)) = (begin(path), path.parent()) {
        let beside = entries(folder).unwrap_or_default().into_iter();
        beside.filter(|file| begin(file).as_ref() == Some(&own)).collect()
    } else {
        vec![path.to_owned()]
    }
}

fn stamp(file: &Path) -> Option<FileStamp> {
    let metadata = fs::metadata(file).ok()?;
    Some(FileStamp {
        written: metadata.modified().ok(),
        n_bytes: metadata.len(),
        inode: inode(&metadata),
    })
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "other systems have none")]
fn inode(metadata: &fs::Metadata) -> Option<u64> {
    Some(std::os::unix::fs::MetadataExt::ino(metadata))
}

/// The system does not say it.
#[cfg(not(unix))]
fn inode(_metadata: &fs::Metadata) -> Option<u64> {
    None
}

/// Returns whether a file is a model, or the first part of one, by its name. Files that accompany a model and
/// hidden files are not.
fn is_model_file(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    let Some(stem) = name.strip_suffix(".gguf") else {
        return false;
    };
    let is_first = part_of_name(stem).is_none_or(|(_, part, _)| part == 1);
    path.is_file() && !name.starts_with('.') && is_model_file_name(name) && is_first
}

/// Whether the header of a file is that of a model. One that was looked at before, and has not changed since, is not opened again.
fn is_model_header(path: &Path, known: &Headers, seen: &mut Headers) -> bool {
    let now = stamp(path);
    let is_model = match known.get(path) {
        Some(&(before, is_model)) if before == now => is_model,
        _ => !is_other_file(path),
    };
    seen.insert(path.to_owned(), (now, is_model));
    is_model
}

/// Whether a file says that it is something else than a model.
fn is_other_file(path: &Path) -> bool {
    let Ok(file) = GgufFile::open(path) else {
        return false;
    };
    let text = |key: &str| file.metadata().opt_str(key).ok().flatten().unwrap_or_default();
    OTHER_TYPES.contains(&text("general.type"))
        || text("general.architecture") == "clip"
        || !text("adapter.type").is_empty()
}

#[cfg(test)]
mod tests {
    use tokenmill_gguf::GgufWriter;

    use super::*;

    fn put(folder: &Path, path: &str, bytes: &[u8]) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("a folder");
        fs::write(path, bytes).expect("a file");
    }

    /// The names of the models in a folder.
    fn names_in(folder: &Path, headers: &mut Headers) -> Vec<String> {
        let found = models_in(folder, headers).expect("it can be read");
        found.iter().map(|path| served_name(path, path)).collect()
    }

    /// A GGUF file without tensors.
    fn gguf(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut writer = GgufWriter::new();
        for (key, value) in entries {
            let metadata = writer.metadata_mut();
            metadata.insert(*key, *value).expect("each key comes once");
        }
        let out = writer.write_header(Vec::new()).expect("memory takes it");
        out.finish().expect("there are no tensors")
    }

    #[test]
    fn a_folder_is_looked_through_one_level_deep() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut headers = Headers::new();
        assert_eq!(names_in(folder.path(), &mut headers), [""; 0]);
        for path in [
            "b.gguf",
            "a-00001-of-00002.gguf",
            "a-00002-of-00002.gguf",
            "mmproj-b.gguf",
            "b-mmProj-F16.gguf",
            "mtp-b-Q8_0.gguf",
            "b-imatrix.gguf",
            ".b.gguf",
            "notes.txt",
            "c/c.gguf",
            "c/mmproj-F16.gguf",
            "d/config.json",
            "e/f/deep.gguf",
            "g/config.json",
            "g/adapter_config.json",
        ] {
            put(folder.path(), path, b"");
        }
        assert_eq!(names_in(folder.path(), &mut headers), ["a", "b", "c", "d"]);
    }

    #[test]
    fn a_file_that_says_it_is_no_model_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, entries) in [
            (
                "model",
                &[("general.type", "model"), ("general.architecture", "llama")][..],
            ),
            ("old", &[("general.architecture", "llama")]),
            (
                "lora",
                &[("general.type", "adapter"), ("general.architecture", "llama")],
            ),
            (
                "lora-old",
                &[("general.architecture", "llama"), ("adapter.type", "lora")],
            ),
            ("matrix", &[("general.type", "imatrix")]),
            (
                "eye",
                &[("general.type", "mmproj"), ("general.architecture", "clip")],
            ),
            ("eye-old", &[("general.architecture", "clip")]),
        ] {
            put(folder.path(), &format!("{name}.gguf"), &gguf(entries));
        }
        put(folder.path(), "broken.gguf", b"GGUF");
        let mut headers = Headers::new();
        let expected = ["broken", "model", "old"];
        assert_eq!(names_in(folder.path(), &mut headers), expected);
        // The results are kept as long as the file is the same.
        assert_eq!(headers.len(), 8);
        for (_, is_model) in headers.values_mut() {
            *is_model = !*is_model;
        }
        let others = ["eye-old", "eye", "lora-old", "lora", "matrix"];
        assert_eq!(names_in(folder.path(), &mut headers), others);
        put(folder.path(), "broken.gguf", b"GGUF, and more");
        assert_eq!(
            names_in(folder.path(), &mut headers),
            [&["broken"][..], &others].concat()
        );
    }

    #[test]
    fn a_path_keeps_its_name() {
        let mut known = Known::default();
        let mut name = |path: &str| known.name(Path::new(path));
        assert_eq!(name("m/a.gguf").as_deref(), Some("a"));
        assert_eq!(name("m/x/a.gguf").as_deref(), Some("x/a"));
        assert_eq!(name("m/a.gguf").as_deref(), Some("a"));
        assert_eq!(name("n/x/a.gguf"), None);
        assert_eq!(name("n/x/a.gguf"), None);
        assert_eq!(known.nameless.len(), 1, "it is warned of once");
    }

    #[test]
    fn a_name_is_free_when_its_file_is_gone() {
        let mut known = Known::default();
        let paths = |paths: &[&str]| -> Vec<PathBuf> { paths.iter().map(PathBuf::from).collect() };
        for path in ["m/a.gguf", "m/x/a.gguf"] {
            known.name(Path::new(path)).expect("it is free");
        }
        assert_eq!(known.name(Path::new("n/x/a.gguf")), None);
        let hub = |name: &str| -> SourceName { name.parse().expect("a name") };
        let pulled = vec![(hub("org/b:Q8_0"), PathBuf::from("m/.hub/b"))];
        assert_eq!(known.pulled_names(pulled.clone()).len(), 1);
        assert!(known.is_taken("org/b:Q8_0") && known.is_taken("m/a.gguf"));
        known.forget_others(&paths(&["m/x/a.gguf", "n/x/a.gguf"]), &[]);
        assert!(!known.is_taken("org/b:Q8_0") && !known.is_taken("m/a.gguf"));
        assert_eq!(known.name(Path::new("m/x/a.gguf")).as_deref(), Some("x/a"));
        assert_eq!(known.name(Path::new("n/x/a.gguf")).as_deref(), Some("a"));
    }

    #[test]
    fn a_models_stamps_change_with_any_of_its_files() {
        let folder = tempfile::tempdir().expect("a folder");
        for path in ["a-00001-of-00002.gguf", "b.gguf", "c/config.json"] {
            put(folder.path(), path, b"x");
        }
        let all = || {
            let models = ["a-00001-of-00002.gguf", "b.gguf", "c"];
            models.map(|path| stamps_of(&folder.path().join(path)))
        };
        let mut before = all();
        for (path, changed) in [
            ("b.gguf", [false, true, false]),
            ("a-00002-of-00002.gguf", [true, false, false]),
            ("a-00002-of-00002.gguf", [true, false, false]),
            ("c/model.safetensors", [false, false, true]),
            ("c/model.safetensors", [false, false, true]),
            ("d.gguf", [false; 3]),
        ] {
            let longer = fs::read(folder.path().join(path)).unwrap_or_default();
            put(folder.path(), path, &[&longer[..], b"y"].concat());
            let now = all();
            for ((before, now), changed) in before.iter().zip(&now).zip(changed) {
                assert_eq!(before != now, changed, "{path}");
            }
            before = now;
        }
    }

    #[test]
    fn a_removal_takes_the_parts_of_one_model() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = |n_parts: u32| (1..=n_parts).map(move |no| format!("a-{no:05}-of-{n_parts:05}.gguf"));
        for name in names(2).chain(names(3)) {
            put(folder.path(), &name, b"");
        }
        remove_model(&folder.path().join("a-00001-of-00002.gguf")).expect("it is there");
        let left = entries(folder.path()).expect("a folder");
        let expected: Vec<PathBuf> = names(3).map(|name| folder.path().join(name)).collect();
        assert_eq!(left, expected);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_in_a_linked_folder_lies_outside() {
        let [folder, other] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        for name in ["own.gguf", "sub/x.gguf"] {
            put(folder.path(), name, b"");
        }
        put(other.path(), "x.gguf", b"");
        std::os::unix::fs::symlink(other.path(), folder.path().join("link")).expect("a link");
        std::os::unix::fs::symlink(other.path().join("x.gguf"), folder.path().join("y.gguf"))
            .expect("a link");
        let is_inside = |name: &str| lies_in(&folder.path().join(name), folder.path());
        assert!(is_inside("own.gguf") && is_inside("sub/x.gguf"));
        // The link itself is an entry of the folder, and only it is removed.
        assert!(is_inside("y.gguf"));
        assert!(!is_inside("link/x.gguf") && !is_inside("link/missing/x.gguf"));
    }
}
