//! Reads the headers of the reference files, and changes them. Weights are zeros, since no description
//! depends on them.

use std::fs;

use serde_json::Value as Json;
use tokenmill_gguf::{GgufFile, GgufWriter, TensorType, Value};
use tokenmill_model::{Descriptor, Model};

/// Holds the header of a file.
#[derive(Clone)]
pub(super) struct Header {
    pub(super) arch: String,
    pub(super) name: String,
    /// Full names and values.
    pub(super) keys: Vec<(String, Value)>,
    pub(super) tensors: Vec<(String, Vec<u64>)>,
}

/// Reads the headers of the reference files, at least one of each architecture.
pub(super) fn headers() -> Vec<Header> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/headers.jsonl");
    let lines = fs::read_to_string(path).unwrap();
    let headers = lines.lines().map(|line| {
        let header: Json = serde_json::from_str(line).unwrap();
        let entries = |field: &str| header[field].as_object().unwrap().clone();
        Header {
            arch: header["arch"].as_str().unwrap().to_owned(),
            name: header["name"].as_str().unwrap().to_owned(),
            keys: (entries("keys").into_iter())
                .map(|(key, typed)| (key, value(typed[0].as_str().unwrap(), &typed[1])))
                .collect(),
            tensors: (entries("tensors").into_iter())
                .map(|(name, dims)| {
                    let dims = dims.as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap());
                    (name, dims.collect())
                })
                .collect(),
        }
    });
    headers.collect()
}

fn value(ty: &str, json: &Json) -> Value {
    let list = || json.as_array().unwrap().iter();
    match ty {
        "UINT32" => Value::U32(json.as_u64().unwrap() as u32),
        "INT32" => Value::I32(json.as_i64().unwrap() as i32),
        "UINT64" => Value::U64(json.as_u64().unwrap()),
        "FLOAT32" => Value::F32(json.as_f64().unwrap() as f32),
        "BOOL" => Value::Bool(json.as_bool().unwrap()),
        "STRING" => json.as_str().unwrap().into(),
        "[UINT32]" => list()
            .map(|n| n.as_u64().unwrap() as u32)
            .collect::<Vec<_>>()
            .into(),
        "[INT32]" => list()
            .map(|n| n.as_i64().unwrap() as i32)
            .collect::<Vec<_>>()
            .into(),
        "[FLOAT32]" => list()
            .map(|n| n.as_f64().unwrap() as f32)
            .collect::<Vec<_>>()
            .into(),
        "[BOOL]" => list().map(|n| n.as_bool().unwrap()).collect::<Vec<_>>().into(),
        other => panic!("no value of type {other} is known here"),
    }
}

impl Header {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// Returns the value of a key, named without the architecture.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        let key = self.key(name);
        self.keys
            .iter()
            .find(|(known, _)| *known == key)
            .map(|(_, value)| value)
    }

    /// Returns the header with a key, given by its full name, set to a value.
    pub(super) fn with(&self, key: &str, value: Value) -> Self {
        let mut changed = self.clone();
        match changed.keys.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => *known = value,
            None => changed.keys.push((key.to_owned(), value)),
        }
        changed
    }

    pub(super) fn without(&self, name: &str) -> Self {
        let mut changed = self.clone();
        let key = self.key(name);
        changed.keys.retain(|(known, _)| *known != key);
        changed
    }

    /// Describes a model file with this header.
    pub(super) fn open(&self) -> Result<Descriptor, String> {
        let mut writer = GgufWriter::new();
        let metadata = writer.metadata_mut();
        metadata
            .insert("general.architecture", self.arch.as_str())
            .unwrap();
        for (key, value) in &self.keys {
            metadata.insert(key.as_str(), value.clone()).unwrap();
        }
        for (name, dims) in &self.tensors {
            writer.add_tensor(name, TensorType::F32, dims).unwrap();
        }
        let mut out = writer.write_header(Vec::new()).unwrap();
        for (_, dims) in &self.tensors {
            let n_bytes = 4 * dims.iter().product::<u64>() as usize;
            out.write(&vec![0; n_bytes]).unwrap();
        }
        let file = GgufFile::from_bytes(&out.finish().unwrap()).unwrap();
        let model = Model::from_gguf(file).map_err(|error| error.to_string())?;
        Ok(model.descriptor().clone())
    }
}
