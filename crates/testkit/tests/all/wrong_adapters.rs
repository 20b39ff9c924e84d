//! Adapters of rank 0 and of wrong shapes: refused with one line, in both forms, and nothing of them is kept.

use std::num::NonZeroU32;

use tokenmill_backend::{AdapterId, Executor};
use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_model::{Model, ModelOptions};
use tokenmill_testkit::{
    NaiveBackend, TinyModel,
    adapter_files::{PairShapes, gguf_adapter, peft_adapter, wrong_adapters},
    engines, tiny_llama,
};

#[test]
fn adapters_of_rank_0_and_of_wrong_shapes_are_refused_in_both_forms() {
    let bytes = TinyModel::random(tiny_llama(), TensorType::F32, 1)
        .to_gguf()
        .unwrap();
    let model = Model::from_gguf(GgufFile::from_bytes(&bytes).unwrap()).unwrap();
    let options = ModelOptions {
        n_ctx: Some(64),
        ..ModelOptions::default()
    };
    let mut executor = engines::load(&model, NaiveBackend::new(), &options).unwrap();
    let infos = model.weights().infos();
    let queries = infos
        .iter()
        .find(|info| info.name == "blk.0.attn_q.weight")
        .unwrap();
    let (n_out, n_in) = (queries.dims[1], queries.dims[0]);
    let id = AdapterId::new(NonZeroU32::MIN);
    let folder = tempfile::tempdir().unwrap();
    let wrong = wrong_adapters("llama", n_in, n_out);
    assert_eq!(wrong.len(), 9);
    for adapter in wrong {
        adapter.write(folder.path());
        let read = model.adapter_reader().read(&folder.path().join(&adapter.name));
        let error = match read {
            Err(error) => error.to_string(),
            // Only the model knows how wide its weights are.
            Ok(read) => executor.add_adapter(id, &read, 1.0).unwrap_err().to_string(),
        };
        assert!(
            error.contains(adapter.part) && !error.contains('\n'),
            "{}: {error}",
            adapter.name
        );
        eprintln!("{}: {error}", adapter.name);
    }
    // The same files with the right shapes are accepted.
    for rank in [1, 2] {
        let right = PairShapes {
            a: [rank, n_in],
            b: [n_out, rank],
        };
        let bytes = gguf_adapter("llama", right);
        let of_gguf = GgufFile::from_bytes(&bytes).unwrap();
        let [config, tensors] = peft_adapter(rank, right);
        let reader = model.adapter_reader();
        for adapter in [reader.from_gguf(&of_gguf), reader.from_peft(&config, &tensors)] {
            executor.add_adapter(id, &adapter.unwrap(), 1.0).unwrap();
            executor.remove_adapter(id);
        }
    }
}
