//! Tokens guessed ahead, seen from outside: the same answers, and figures that say what was guessed.

use serde_json::{Value, json};
use tokenmill_sched::{EngineConfig, Speculation};

use crate::server::{Setup, TestServer};

const COMPLETIONS: &str = "/v1/completions";

async fn server(speculation: Speculation) -> Option<TestServer> {
    let engine = EngineConfig {
        speculation,
        ..EngineConfig::default()
    };
    TestServer::start_with(Setup {
        engine,
        drafts: matches!(speculation, Speculation::Draft { .. }),
        ..Setup::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_the_same_and_say_what_was_guessed() {
    let Some(plain) = server(Speculation::Off).await else {
        return;
    };
    for (speculation, drafter) in [
        (Speculation::Ngram { max_draft: 6 }, "ngram"),
        (Speculation::Draft { max_draft: 6 }, "draft"),
    ] {
        compare(&plain, &server(speculation).await.unwrap(), drafter).await;
    }
}

/// Compares a server that guesses with one that does not.
async fn compare(plain: &TestServer, guessing: &TestServer, drafter: &str) {
    let text = "The cat sat on the mat. The dog sat on the mat. The cat sat on the";
    let bodies = [
        json!({ "prompt": text, "max_tokens": 40, "temperature": 0, "logprobs": 2 }),
        json!({ "prompt": text, "max_tokens": 40, "temperature": 0.7, "seed": 3, "n": 3 }),
        json!({ "prompt": text, "max_tokens": 40, "temperature": 0, "stop": ["mat"], "stream": false }),
        // The same token again and again: all guesses but the first are right.
        json!({ "prompt": text, "max_tokens": 40, "temperature": 0, "logit_bias": { "40": 100 } }),
    ];
    let (mut n_drafted, mut n_accepted) = (0, 0);
    for body in &bodies {
        let expected = plain.post(COMPLETIONS, body).await.json();
        let found = guessing.post(COMPLETIONS, body).await.json();
        assert_eq!(found["choices"], expected["choices"], "{body}");
        let counts = ["prompt_tokens", "completion_tokens"].map(|name| &found["usage"][name]);
        assert_eq!(
            counts,
            ["prompt_tokens", "completion_tokens"].map(|name| &expected["usage"][name])
        );
        assert_eq!(expected["timings"]["draft_n"], Value::Null, "nothing was guessed");
        n_drafted += found["timings"]["draft_n"].as_u64().unwrap_or(0);
        n_accepted += found["timings"]["draft_n_accepted"].as_u64().unwrap_or(0);
    }
    assert!(
        n_accepted > 30 && n_drafted >= n_accepted,
        "{n_accepted} of {n_drafted}"
    );

    let reply = guessing.get("/metrics").await;
    let value = |name: &str| -> f64 {
        (reply.text().lines())
            .filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '))
            .filter(|(labels, _)| labels.is_empty() || labels.starts_with('{'))
            .map(|(_, value)| value.parse::<f64>().unwrap())
            .sum()
    };
    let accepted = value("vllm:spec_decode_num_accepted_tokens_total");
    assert!(accepted >= n_accepted as f64);
    assert_eq!(
        value("vllm:spec_decode_num_accepted_tokens_per_pos_total"),
        accepted
    );
    assert!(value("vllm:spec_decode_num_draft_tokens_total") >= n_drafted as f64);
    assert!(value("vllm:spec_decode_num_drafts_total") > 0.0);
    assert_eq!(value("tokenmill_accepted_draft_tokens_total"), accepted);
    let at_first = "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"demo\",position=\"0\"}";
    assert!(value(at_first) > 0.0);
    for (name, all) in [
        (
            "tokenmill_drafter_tokens_total",
            value("tokenmill_draft_tokens_total"),
        ),
        ("tokenmill_drafter_accepted_tokens_total", accepted),
    ] {
        let by = |kind: &str| value(&format!("{name}{{model_name=\"demo\",drafter=\"{kind}\"}}"));
        assert_eq!(by(drafter), all, "{name}");
        assert_eq!(by("ngram") + by("draft"), all, "{name}");
    }
}
