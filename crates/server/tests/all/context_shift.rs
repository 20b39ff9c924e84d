//! Contexts that are shifted, over HTTP: the reports that clients get.

use serde_json::{Value, json};
use tokenmill_sched::{ContextShift, EngineConfig};

use crate::server::{Setup, TestServer};

const N_TOKENS: u64 = 700;

fn setup(is_shifted: bool) -> Setup {
    Setup {
        engine: EngineConfig {
            context_shift: is_shifted.then_some(ContextShift { keep: 4 }),
            ..EngineConfig::default()
        },
        ..Setup::default()
    }
}

async fn complete(server: &TestServer, n_ctx: u64) -> Value {
    let prompt: Vec<u64> = (0..n_ctx - 20).map(|i| 5 + i % 90).collect();
    let body = json!({ "prompt": prompt, "n_predict": N_TOKENS, "temperature": 0, "ignore_eos": true, "n_probs": 1,
        "return_tokens": true });
    server.post_ok("/completion", &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_behind_its_context_and_says_so() {
    let Some(plain) = TestServer::start_with(setup(false)).await else {
        return;
    };
    let n_ctx = plain.app.model.engine().limits().n_ctx as u64;
    let ended = complete(&plain, n_ctx).await;
    assert_eq!(
        [
            &ended["tokens_predicted"],
            &ended["truncated"],
            &ended["stop_type"]
        ],
        [&json!(20), &json!(true), &json!("limit")]
    );
    let shifting = TestServer::start_with(setup(true))
        .await
        .expect("the model is there");
    let whole = complete(&shifting, n_ctx).await;
    assert_eq!(
        [
            &whole["tokens_predicted"],
            &whole["tokens_evaluated"],
            &whole["truncated"],
            &whole["stop_type"]
        ],
        [
            &json!(N_TOKENS),
            &json!(n_ctx - 20),
            &json!(true),
            &json!("limit")
        ]
    );
    let n_dropped = whole["timings"]["dropped_n"].as_u64().expect("a count");
    let unit = (n_ctx - 4) / 2;
    assert_eq!(n_dropped, (N_TOKENS - 20).next_multiple_of(unit));
    let ids = |answer: &Value| answer["tokens"].as_array().expect("ids").clone();
    assert_eq!(ids(&whole)[..20], ids(&ended)[..]);
    let n_scores = whole["completion_probabilities"].as_array().map(Vec::len);
    assert_eq!(n_scores, Some(N_TOKENS as usize), "each token has its score");

    let metrics = shifting.get("/metrics").await;
    let metrics = metrics.text();
    for (name, count) in [
        ("tokenmill_context_shifts_total{", n_dropped / unit),
        ("tokenmill_context_shift_dropped_tokens_total{", n_dropped),
    ] {
        let line = metrics.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.rsplit(' ').next());
        assert_eq!(value, Some(count.to_string().as_str()), "{name}");
    }

    // The other APIs end as they do without it.
    let body = json!({ "prompt": [5, 6, 7], "max_tokens": n_ctx + 50, "temperature": 0, "ignore_eos": true });
    let answer = shifting.post_ok("/v1/completions", &body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], n_ctx + 50);
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
}
