//! [`Catalog`]: the models of a server, and the model that a name means.
//!
//! The registry has their states; names are only text. Invariants: a model keeps its place for ever, whatever
//! comes and goes; a name means one model or none.

use std::{collections::HashMap, sync::Arc};

use super::{ModelSpec, ModelsError};
use crate::model_names::{is_of_repository, is_variant};

/// The models of a server at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Catalog {
    specs: Vec<Arc<ModelSpec>>,
    /// Which model a name means; those of adapters are their model's.
    names: HashMap<String, usize>,
    /// Whether each has vanished from the folder that it was found in.
    is_gone: Vec<bool>,
}

/// The models after a look through their folder.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) catalog: Catalog,
    /// The models, known before, whose files are others now or are there again.
    pub(super) changed: Vec<usize>,
}

impl Catalog {
    /// # Errors
    /// No model, one without a name, and two of one name.
    pub(super) fn new(specs: Vec<ModelSpec>) -> Result<Self, ModelsError> {
        if specs.is_empty() {
            return Err(ModelsError::None);
        }
        let mut names = HashMap::new();
        for (idx, spec) in specs.iter().enumerate() {
            if spec.names.is_empty() || spec.names.iter().any(String::is_empty) {
                return Err(ModelsError::NoName);
            }
            for name in spec.names.iter().chain(&spec.adapters) {
                if let Some(other) = names.insert(name.clone(), idx) {
                    let given = |idx: usize| specs[idx].given.as_deref().unwrap_or(specs[idx].name());
                    return Err(ModelsError::SameName {
                        name: name.clone(),
                        models: [other, idx].map(|idx| given(idx).to_owned()),
                    });
                }
            }
        }
        for (idx, spec) in specs.iter().enumerate() {
            if let Some(given) = &spec.given {
                names.entry(given.clone()).or_insert(idx);
            }
        }
        Ok(Self {
            is_gone: vec![false; specs.len()],
            specs: specs.into_iter().map(Arc::new).collect(),
            names,
        })
    }

    /// All models, also those that are gone.
    pub(super) fn specs(&self) -> &[Arc<ModelSpec>] {
        &self.specs
    }

    /// Whether a model has vanished from its folder.
    pub(super) fn is_gone(&self, idx: usize) -> bool {
        self.is_gone[idx]
    }

    /// The same with the present contents of the folder: new models come last, and missing ones are gone. `None` where nothing has
    /// changed.
    pub(super) fn with_folder(&self, found: Vec<ModelSpec>) -> Option<Looked> {
        let mut new = self.clone();
        let mut changed = Vec::new();
        for (spec, is_gone) in self.specs.iter().zip(&mut new.is_gone) {
            *is_gone = spec.is_of_folder;
        }
        for mut spec in found {
            let names = || spec.names.iter().chain(&spec.adapters);
            match new.names.get(spec.name()).copied() {
                Some(idx) if new.specs[idx].is_of_folder => {
                    new.is_gone[idx] = false;
                    let is_known = idx < self.specs.len();
                    if is_known && self.specs[idx].given != spec.given {
                        // Another file has the name of one that left.
                        if let Some(given) = &spec.given {
                            new.names.entry(given.clone()).or_insert(idx);
                        }
                        spec.is_of_folder = true;
                        new.specs[idx] = Arc::new(spec);
                        changed.push(idx);
                    } else if is_known && (self.is_gone[idx] || self.specs[idx].stamps != spec.stamps) {
                        Arc::make_mut(&mut new.specs[idx]).stamps = spec.stamps;
                        changed.push(idx);
                    }
                }
                None if names().all(|name| !name.is_empty() && !new.names.contains_key(name)) => {
                    let idx = new.specs.len();
                    let names: Vec<String> = names().cloned().collect();
                    new.names.extend(names.into_iter().map(|name| (name, idx)));
                    if let Some(given) = &spec.given {
                        new.names.entry(given.clone()).or_insert(idx);
                    }
                    spec.is_of_folder = true;
                    new.specs.push(Arc::new(spec));
                    new.is_gone.push(false);
                }
                // Another has the name.
                _ => {}
            }
        }
        let is_same =
            new.specs.len() == self.specs.len() && new.is_gone == self.is_gone && changed.is_empty();
        (!is_same).then_some(Looked {
            catalog: new,
            changed,
        })
    }

    /// The model that has one of the names.
    pub(super) fn find(&self, forms: &[String]) -> Option<usize> {
        forms.iter().find_map(|form| self.names.get(form).copied())
    }

    /// The model of `model:adapter`, which is not loaded: it says itself whether it has the adapter.
    pub(super) fn find_by_adapter(&self, forms: &[String]) -> Option<usize> {
        let has_adapter = |spec: &ModelSpec, form: &str| {
            let behind = |name: &String| form.strip_prefix(name.as_str())?.strip_prefix(':');
            let mut adapters = spec.names.iter().chain(&spec.given).filter_map(behind);
            adapters.any(|adapter| spec.adapters.iter().any(|known| known == adapter))
        };
        let is_known = |spec: &Arc<ModelSpec>| forms.iter().any(|form| has_adapter(spec, form));
        self.specs.iter().position(is_known)
    }

    /// Finds the only model of a repository among those that are `present`, or the only one of the type that a name adds.
    pub(super) fn find_by_repository(&self, forms: &[String], present: &[usize]) -> Option<usize> {
        let is_of = |spec: &ModelSpec| {
            let mut names = spec.names.iter();
            names.any(|name| {
                let is_it =
                    |form: &String| is_of_repository(name, form) || is_variant(name, form, &spec.variants);
                forms.iter().any(is_it)
            })
        };
        let mut found = present.iter().copied().filter(|&idx| is_of(&self.specs[idx]));
        found.next().filter(|_| found.next().is_none())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokenmill::Model;

    use super::{
        super::{FileStamp, Measured, ModelLoader},
        *,
    };

    #[derive(Debug)]
    struct Nothing;

    impl ModelLoader for Nothing {
        fn measure(&self) -> Result<Measured, String> {
            Err("there is nothing".to_owned())
        }

        fn load(&self, _is_quiet: bool) -> Result<Model, String> {
            Err("there is nothing".to_owned())
        }
    }

    /// Models that cannot be loaded.
    pub(in crate::models) fn specs(names: &[&str]) -> Vec<ModelSpec> {
        names.iter().map(|name| ModelSpec::new(*name, Nothing)).collect()
    }

    #[test]
    fn models_of_a_folder_come_and_go_and_keep_their_places() {
        let mut first = specs(&["named", "a", "b"]);
        for spec in &mut first[1..] {
            spec.is_of_folder = true;
        }
        let catalog = Catalog::new(first).expect("the names are of one model each");
        assert!(
            catalog.with_folder(specs(&["b", "a"])).is_none(),
            "nothing changed"
        );
        // Another has the name of the last.
        let changed = catalog.with_folder(specs(&["b", "c", "named"]));
        let Looked { catalog: changed, .. } = changed.expect("one came and one went");
        let names: Vec<&str> = changed.specs().iter().map(|spec| spec.name()).collect();
        assert_eq!(names, ["named", "a", "b", "c"]);
        assert_eq!(changed.is_gone, [false, true, false, false]);
        assert_eq!(changed.find(&["c".to_owned()]), Some(3));
        let back = changed.with_folder(specs(&["a", "b"])).expect("one came back");
        assert_eq!(back.catalog.is_gone, [false, false, false, true]);
        assert_eq!(back.catalog.specs().len(), 4);
        // The facts from before it went need not hold.
        assert_eq!(back.changed, [1]);
    }

    #[test]
    fn a_model_with_other_files_has_changed() {
        let of_length = |n_bytes: u64| {
            let mut found = specs(&["a", "b"]);
            for spec in &mut found {
                spec.is_of_folder = true;
            }
            found[1].stamps.push(FileStamp {
                written: None,
                n_bytes,
                inode: None,
            });
            found
        };
        let catalog = Catalog::new(of_length(1)).expect("the names are of one model each");
        assert!(catalog.with_folder(of_length(1)).is_none());
        let longer = catalog.with_folder(of_length(2)).expect("one has changed");
        assert_eq!(longer.changed, [1]);
        assert!(longer.catalog.with_folder(of_length(2)).is_none());
        let gone = longer.catalog.with_folder(Vec::new()).expect("both went");
        assert_eq!(gone.changed, [0; 0]);
    }

    #[test]
    fn another_file_under_a_known_name_takes_its_place() {
        let given = |path: &str| {
            let mut found = specs(&["a", "b"]);
            for spec in &mut found {
                spec.is_of_folder = true;
            }
            found[1].given = Some(path.to_owned());
            found
        };
        let catalog = Catalog::new(given("b.gguf")).expect("the names are of one model each");
        assert!(catalog.with_folder(given("b.gguf")).is_none());
        let moved = catalog.with_folder(given("sub/b.gguf")).expect("one has moved");
        assert_eq!(moved.changed, [1]);
        let spec = &moved.catalog.specs()[1];
        assert_eq!(spec.given.as_deref(), Some("sub/b.gguf"));
        assert!(spec.is_of_folder);
        assert_eq!(moved.catalog.names.get("sub/b.gguf"), Some(&1));
        assert!(moved.catalog.with_folder(given("sub/b.gguf")).is_none());
    }

    #[test]
    fn a_repository_is_that_of_the_one_model_that_is_there() {
        let catalog = Catalog::new(specs(&["o/r:Q4_0", "o/r:Q8_0"])).expect("two names");
        let find = |present: &[usize]| catalog.find_by_repository(&["o/r".to_owned()], present);
        assert_eq!(find(&[0, 1]), None);
        assert_eq!(find(&[1]), Some(1));
    }
}
