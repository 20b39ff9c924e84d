//! A server whose model's file is another while it runs. The table of embeddings stays in the file, so it matters.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use tokenmill_gguf::{Array, GgufFile, GgufWriter, Metadata, StringArray, TensorType, Value};

use crate::{
    mtp::DEMO,
    server::Server,
    support::{arg, end_of},
};

/// Rows of a table of 64 MiB, which stays in its file.
const N_ROWS: usize = 1 << 16;
const N_EMBD: usize = 256;

/// Writes the built-in model with a larger vocabulary and a head of its own, which says nothing.
fn write_with_large_table(path: &Path) {
    let file = GgufFile::open(DEMO).unwrap();
    let mut metadata = Metadata::new();
    for (key, value) in file.metadata().iter() {
        let value = match (key, value) {
            ("llama.vocab_size", _) => (N_ROWS as u32).into(),
            (_, Value::Array(Array::String(texts))) if key == "tokenizer.ggml.tokens" => {
                let more = (texts.len()..N_ROWS).map(|idx| format!("<unused-{idx}>"));
                let all: StringArray = texts.iter().map(str::to_owned).chain(more).collect();
                all.into()
            }
            (_, Value::Array(Array::I32(types))) if key == "tokenizer.ggml.token_type" => {
                let unused = vec![5; N_ROWS - types.len()];
                Array::I32([&types[..], &unused].concat()).into()
            }
            (_, value) => value.clone(),
        };
        metadata.insert(key, value).unwrap();
    }
    let zeros = vec![0; 4 * N_ROWS * N_EMBD];
    let mut writer = GgufWriter::with_metadata(metadata);
    let mut tensors = Vec::new();
    for info in file.tensors().filter(|info| info.name != "token_embd.weight") {
        let view = file.tensor(&info.name).unwrap();
        let mut bytes = Vec::new();
        let bytes = view.bytes.read(0..view.bytes.len(), &mut bytes).unwrap().to_vec();
        let dims: Vec<u64> = info.dims.iter().map(|&dim| dim as u64).collect();
        writer.add_tensor(&info.name, info.ty, &dims).unwrap();
        tensors.push(bytes);
    }
    for table in ["token_embd.weight", "output.weight"] {
        let dims = [N_EMBD as u64, N_ROWS as u64];
        writer.add_tensor(table, TensorType::F32, &dims).unwrap();
    }
    let mut out = writer.write_header(fs::File::create(path).unwrap()).unwrap();
    for bytes in tensors.iter().chain([&zeros, &zeros]) {
        out.write(bytes).unwrap();
    }
    out.finish().unwrap();
}

fn complete(server: &Server) -> (u16, serde_json::Value) {
    let body = json!({ "prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0 });
    server.ask("POST", "/v1/completions", &body.to_string())
}

#[test]
fn a_file_that_is_replaced_stays_in_use_and_one_that_is_changed_ends_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.gguf");
    write_with_large_table(&path);
    let bytes = fs::read(&path).unwrap();
    let server = Server::start(&[arg(&path), "-c", "64", "--device", "cpu"]);
    let (status, first) = complete(&server);
    assert_eq!(status, 200, "{first}");
    // As downloads end: the name stands for another file, and the open one is as it was.
    let other = folder.path().join("other.gguf");
    fs::write(&other, &bytes[..bytes.len() / 2]).unwrap();
    fs::rename(&other, &path).unwrap();
    let (status, again) = complete(&server);
    assert_eq!((status, &again["choices"]), (200, &first["choices"]), "{again}");
    assert_eq!(server.ask("GET", "/health", "").0, 200);
    server.end();

    fs::write(&path, &bytes).unwrap();
    let mut server = Server::start(&[arg(&path), "-c", "64", "--device", "cpu"]);
    assert_eq!(complete(&server).0, 200);
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (status, reply) = complete(&server);
    let text = reply.to_string();
    assert!(
        status >= 500 && text.contains("wide.gguf was changed while the model was in use"),
        "{status} {text}"
    );
    // The answer may come before the engine has ended. Then it is not ready any more, and soon after it is gone.
    let deadline = Instant::now() + Duration::from_mins(1);
    while Server::ask_at(server.address(), "GET", "/health", "").is_ok_and(|(status, _)| status != 503) {
        assert!(Instant::now() < deadline, "it is still ready");
        thread::sleep(Duration::from_millis(10));
    }
    let log = std::sync::Arc::clone(&server.log);
    let outcome = end_of(server.take());
    assert_eq!(outcome.code, 3);
    let log = log.lock().unwrap().join("\n");
    assert!(
        log.contains("the engine has ended: ")
            && log.contains("wide.gguf was changed while the model was in use (tensor `token_embd.weight` is read from it)")
            && log.contains("(hint: start the program again"),
        "{log}"
    );
}
