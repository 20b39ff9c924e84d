//! Tests the promises of the library's interface for models that embed and rank, on tiny ones with random weights.

use std::path::PathBuf;

use tokenmill::{Device, Error, Message, Model, TextParams, load::ModelSource};
use tokenmill_sched::EngineError;

fn model(name: &str) -> Model {
    let options = Model::options().sequences(4).threads(1).device(Device::Cpu);
    options.load(path(name)).unwrap()
}

fn path(name: &str) -> PathBuf {
    let data = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/encoders"));
    data.join(name).join("model-Q4_K_M.gguf")
}

#[test]
fn an_encoder_embeds_texts_in_company_as_alone_and_writes_nothing() {
    let model = model("nomic_bert");
    let texts = [
        "the cat sat",
        "a dog",
        "",
        "the end of a longer text, with a comma",
    ];
    let together = model.embed(&texts).unwrap();
    for (text, vector) in texts.iter().zip(&together) {
        let norm: f64 = vector.iter().map(|&x| f64::from(x).powi(2)).sum();
        assert!((norm - 1.0).abs() < 1e-5, "{text}: {norm}");
        assert_eq!(&model.embed(&[text]).unwrap()[0], vector, "{text}");
    }
    assert_ne!(together[0], together[1]);

    let refused = model.complete("the cat", &TextParams::default()).unwrap_err();
    assert!(
        matches!(refused, Error::Engine(EngineError::PredictsNoTokens)),
        "{refused}"
    );
    assert!(
        model
            .chat(&[Message::user("hello")], &TextParams::default())
            .is_err()
    );
    let refused = model.rerank("cat", &["dog"]).unwrap_err();
    assert!(matches!(refused, Error::RanksNothing), "{refused}");

    let long = "cat ".repeat(5000);
    let refused = model.embed(&[long]).unwrap_err();
    let is_context = matches!(
        refused,
        Error::Engine(EngineError::ContextLimitExceeded { provided, maximum: 2048 }) if provided > 5000
    );
    assert!(is_context, "{refused}");
}

#[test]
fn a_reranker_scores_pairs_and_makes_no_embeddings() {
    let model = model("xlmr_rerank");
    let documents = ["a mat", "the cat sat on the mat", "nothing of it"];
    let scores = model.rerank("where is the cat", &documents).unwrap();
    assert!(
        scores.iter().all(|score| (0.0..=1.0).contains(score)),
        "{scores:?}"
    );
    for (document, score) in documents.iter().zip(&scores) {
        assert_eq!(model.rerank("where is the cat", &[document]).unwrap(), [*score]);
    }
    assert_ne!(scores[0], scores[1]);
    // <s> query </s></s> document </s>
    let pair = model.words().encode_pair("cat", "mat", None).unwrap();
    let ends = |text: &str| {
        let ids = model.words().encode_text(text, false);
        (ids.len(), ids)
    };
    let ((n_query, query), (_, document)) = (ends("cat"), ends("mat"));
    assert_eq!(pair[0], 0);
    assert_eq!(pair[1..=n_query], query);
    assert_eq!(pair[n_query + 1..n_query + 3], [2, 2]);
    assert_eq!(pair[n_query + 3..pair.len() - 1], document);
    assert_eq!(pair.last(), Some(&2));

    assert!(matches!(model.embed(&["cat"]), Err(Error::MakesNoEmbeddings)));
    let refused = model.words().encode_pair("cat", "mat", Some("find cats"));
    assert!(matches!(refused, Err(Error::NoPlaceForInstruction)));
}

#[test]
fn a_chat_model_ranks_only_where_it_was_made_for_it() {
    let demo = Model::options().context(64).threads(1).device(Device::Cpu);
    let demo = demo.load("demo").unwrap();
    assert!(matches!(demo.rerank("cat", &["dog"]), Err(Error::RanksNothing)));
    assert_eq!(ModelSource::find("demo").unwrap(), ModelSource::Demo);
}
