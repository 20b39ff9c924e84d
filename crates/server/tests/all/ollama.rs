//! Ollama's API over a socket: lines of JSON, options, shapes, tools, reasoning, vectors, and what describes the model.

use serde_json::{Value, json};

use crate::server::{Setup, TestServer};

const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
                        {% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %};\
                        {% endfor %}{% if false %}<think></think>{% endif %}";

const ANSWER: &str = "<think>\nHm.\n</think>\n\nLooking.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";

async fn saying(text: &str) -> Option<TestServer> {
    TestServer::start_with(Setup {
        template: Some(TEMPLATE.to_owned()),
        says: Some(text.to_owned()),
        ..Setup::default()
    })
    .await
}

/// Where the text of a line stands.
type TextOf = fn(&Value) -> &Value;

/// The lines of an answer.
async fn lines(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let reply = server.post(path, body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    let lines = reply.text().lines();
    lines
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}

fn joined(lines: &[Value], of: impl Fn(&Value) -> &Value) -> String {
    lines
        .iter()
        .map(|line| of(line).as_str().unwrap_or_default())
        .collect()
}

/// The counts and times of the last line.
fn check_end(end: &Value, reason: &str) {
    assert_eq!(
        (&end["done"], &end["done_reason"]),
        (&json!(true), &json!(reason)),
        "{end}"
    );
    for name in [
        "total_duration",
        "prompt_eval_duration",
        "eval_duration",
        "prompt_eval_count",
    ] {
        assert!(end[name].as_u64().is_some_and(|n| n > 0), "{name}: {end}");
    }
    let sum = end["prompt_eval_duration"].as_u64().unwrap() + end["eval_duration"].as_u64().unwrap();
    assert!(sum <= end["total_duration"].as_u64().unwrap(), "{end}");
    assert!(end["created_at"].as_str().is_some_and(|time| time.ends_with('Z')));
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_and_whole_answers_are_the_same() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let options =
        json!({ "temperature": 0, "num_predict": 12, "num_ctx": 128, "num_gpu": 99, "repeat_penalty": 1.0 });
    let chat = json!({ "model": "demo:latest", "messages": [{ "role": "user", "content": "Tell me a story." }],
        "options": options, "keep_alive": "5m" });
    let generate =
        json!({ "model": "demo", "prompt": "Tell me a story.", "options": options, "keep_alive": -1 });
    let said: [(&str, &Value, TextOf); 2] = [
        ("/api/chat", &chat, |line| &line["message"]["content"]),
        ("/api/generate", &generate, |line| &line["response"]),
    ];
    let mut texts = Vec::new();
    for (path, body, text_of) in said {
        let streamed = lines(&server, path, body).await;
        let (end, pieces) = streamed.split_last().expect("lines");
        assert!(pieces.len() > 3 && pieces.iter().all(|line| line["done"] == false));
        check_end(end, "length");
        assert_eq!(end["eval_count"], 12);
        let mut body = body.clone();
        body["stream"] = json!(false);
        let whole = server.post_ok(path, &body).await;
        check_end(&whole, "length");
        let text = text_of(&whole).as_str().expect("text").to_owned();
        assert_eq!(joined(&streamed, text_of), text);
        texts.push(text);
    }
    assert_eq!(texts[0], texts[1], "a prompt is a user's message");

    // The same tokens as on OpenAI's endpoint.
    let openai = json!({ "messages": chat["messages"], "temperature": 0, "max_tokens": 12 });
    let openai = server.post_ok("/v1/chat/completions", &openai).await;
    assert_eq!(openai["choices"][0]["message"]["content"], texts[0].as_str());

    // A raw prompt is the template's own text.
    let rendered = server
        .post_ok("/apply-template", &json!({ "messages": chat["messages"] }))
        .await;
    let raw = json!({ "prompt": rendered["prompt"], "raw": true, "stream": false, "options": options });
    let raw = server.post_ok("/api/generate", &raw).await;
    assert_eq!(raw["response"], texts[0].as_str());
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn options_seeds_stops_and_log_probabilities_arrive() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let ask = async |options: Value| {
        let body = json!({ "prompt": "Tell me a story.", "stream": false, "options": options,
            "logprobs": true, "top_logprobs": 2 });
        server.post_ok("/api/generate", &body).await
    };
    let first = ask(json!({ "seed": 7, "num_predict": 20 })).await;
    let again = ask(json!({ "seed": 7, "num_predict": 20 })).await;
    assert_eq!(first["response"], again["response"]);
    let text = first["response"].as_str().expect("text");
    let scores = first["logprobs"].as_array().expect("scores");
    let tokens: String = scores
        .iter()
        .map(|score| score["token"].as_str().expect("text"))
        .collect();
    assert_eq!(tokens, text);
    assert!(
        scores
            .iter()
            .all(|score| score["top_logprobs"].as_array().is_some_and(|top| top.len() == 2))
    );
    let stop = &text[8..11];
    let stopped = ask(json!({ "seed": 7, "num_predict": 20, "stop": [stop] })).await;
    assert_eq!(stopped["response"], text[..text.find(stop).expect("it is there")]);
    check_end(&stopped, "stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_format_shapes_the_answer() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let schema = json!({ "type": "object", "properties": { "age": { "type": "integer", "minimum": 0, "maximum": 99 } },
        "required": ["age"], "additionalProperties": false });
    for (path, body) in [
        (
            "/api/chat",
            json!({ "messages": [{ "role": "user", "content": "How old?" }] }),
        ),
        ("/api/generate", json!({ "prompt": "How old?" })),
    ] {
        let mut body = body;
        body["stream"] = json!(false);
        body["options"] = json!({ "temperature": 1.5, "seed": 3, "num_predict": 60 });
        body["format"] = schema.clone();
        let reply = server.post_ok(path, &body).await;
        let text = reply["response"]
            .as_str()
            .or(reply["message"]["content"].as_str());
        let value: Value = serde_json::from_str(text.expect("text")).expect("JSON");
        assert!(value["age"].as_u64().is_some_and(|age| age < 100), "{value}");
        body["format"] = json!("json");
        let reply = server.post_ok(path, &body).await;
        let text = reply["response"]
            .as_str()
            .or(reply["message"]["content"].as_str());
        assert!(text.expect("text").starts_with('{'));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_come_whole_and_reasoning_apart() {
    let Some(server) = saying(ANSWER).await else {
        return;
    };
    let tool = json!({ "type": "function", "function": { "name": "weather", "description": "Tells it.",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } } } });
    let body = json!({ "messages": [{ "role": "user", "content": "Well?" }], "tools": [tool], "think": true,
        "options": { "seed": 1 } });
    let streamed = lines(&server, "/api/chat", &body).await;
    assert_eq!(joined(&streamed, |line| &line["message"]["content"]), "Looking.");
    assert_eq!(joined(&streamed, |line| &line["message"]["thinking"]), "Hm.");
    let calls: Vec<&Value> = streamed
        .iter()
        .filter_map(|line| line["message"]["tool_calls"].as_array())
        .flatten()
        .collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0]["function"]["arguments"], json!({ "city": "Bern" }));
    check_end(streamed.last().expect("lines"), "stop");

    let mut whole = body.clone();
    whole["stream"] = json!(false);
    whole["options"] = json!({ "seed": 2 });
    let whole = server.post_ok("/api/chat", &whole).await;
    let message = &whole["message"];
    assert_eq!(
        (
            &message["content"],
            &message["thinking"],
            &message["tool_calls"][0]["function"]["name"]
        ),
        (&json!("Looking."), &json!("Hm."), &json!("weather"))
    );
    // The answer can be sent back, with a result.
    let mut again = body.clone();
    again["stream"] = json!(false);
    again["messages"] = json!([{ "role": "user", "content": "Well?" }, message,
        { "role": "tool", "tool_name": "weather", "name": "weather", "content": "Rain." }]);
    let again = server.post_ok("/api/chat", &again).await;
    assert!(again["prompt_eval_count"].as_u64() > whole["prompt_eval_count"].as_u64());

    // A call that breaks is text, which nothing of was sent before.
    let broken = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": Bern}}</tool_call>";
    let Some(server) = saying(broken).await else {
        return;
    };
    let mut body = body;
    body["think"] = json!("low");
    let streamed = lines(&server, "/api/chat", &body).await;
    assert_eq!(joined(&streamed, |line| &line["message"]["content"]), broken);
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_are_those_of_the_other_endpoint() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let texts = json!(["The cat sat.", "A dog ran away."]);
    let theirs = server.post_ok("/v1/embeddings", &json!({ "input": texts })).await;
    let ours = server
        .post_ok("/api/embed", &json!({ "model": "demo", "input": texts }))
        .await;
    assert_eq!(ours["embeddings"][1], theirs["data"][1]["embedding"]);
    assert_eq!(ours["prompt_eval_count"], theirs["usage"]["prompt_tokens"]);
    let older = server
        .post_ok("/api/embeddings", &json!({ "prompt": texts[0] }))
        .await;
    assert_eq!(older["embedding"], theirs["data"][0]["embedding"]);
    let cut = server
        .post_ok("/api/embed", &json!({ "input": "a", "dimensions": 8 }))
        .await;
    assert_eq!(cut["embeddings"][0].as_array().map(Vec::len), Some(8));
    let long = json!({ "input": "word ".repeat(5000) });
    assert_eq!(server.post("/api/embed", &long).await.status, 200, "it is cut");
    let long = json!({ "input": long["input"], "truncate": false });
    assert_eq!(server.post("/api/embed", &long).await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_is_described() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let tags = server.get("/api/tags").await.json();
    assert_eq!(tags["models"][0]["name"], "demo:latest");
    assert!(
        tags["models"][0]["digest"]
            .as_str()
            .is_some_and(|digest| digest.len() >= 12)
    );
    let ps = server.get("/api/ps").await.json();
    assert_eq!(
        (&ps["models"][0]["model"], &ps["models"][0]["size_vram"]),
        (&json!("demo:latest"), &json!(0))
    );
    let shown = server
        .post_ok("/api/show", &json!({ "model": "demo:latest", "name": "demo" }))
        .await;
    assert_eq!(
        shown["template"],
        server.app.model.chat_template().unwrap_or_default()
    );
    assert!(
        shown["capabilities"]
            .as_array()
            .is_some_and(|all| all.contains(&json!("completion")) && all.contains(&json!("tools")))
    );
    assert!(server.get("/api/version").await.json()["version"].is_string());
    for path in ["/api/chat", "/api/generate"] {
        let loaded = server.post_ok(path, &json!({ "model": "demo" })).await;
        assert_eq!(loaded["done_reason"], "load");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_with_the_tag_is_found_as_it_is() {
    let Some(server) = TestServer::start_with(Setup {
        alias: Some("tagged:latest".to_owned()),
        ..Setup::default()
    })
    .await
    else {
        return;
    };
    for name in ["demo", "demo:latest", "tagged:latest", "tagged"] {
        for path in ["/api/show", "/api/chat", "/api/generate"] {
            server.post_ok(path, &json!({ "model": name })).await;
        }
    }
    let other = server
        .post("/api/show", &json!({ "model": "other:latest" }))
        .await;
    assert_eq!(other.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_their_own_form_and_name_the_field() {
    let Some(server) = TestServer::start().await else {
        return;
    };
    let message = json!([{ "role": "user", "content": "Hi" }]);
    for (path, body, status, word) in [
        ("/api/show", json!({ "model": "other" }), 404, "other"),
        (
            "/api/chat",
            json!({ "messages": message, "keep_alive": 0.0 }),
            400,
            "keep_alive",
        ),
        (
            "/api/chat",
            json!({ "messages": message, "temperature": 1 }),
            400,
            "temperature",
        ),
        (
            "/api/chat",
            json!({ "messages": message, "think": "much" }),
            400,
            "think",
        ),
        (
            "/api/chat",
            json!({ "messages": message, "format": 3 }),
            400,
            "format",
        ),
        (
            "/api/chat",
            json!({ "messages": message, "format": { "type": "nonsense" } }),
            400,
            "format",
        ),
        (
            "/api/chat",
            json!({ "messages": message, "tools": [{ "type": "function" }] }),
            400,
            "tools[0]",
        ),
        (
            "/api/chat",
            json!({ "messages": message, "options": { "mirostat": 3 } }),
            400,
            "options.mirostat",
        ),
        (
            "/api/chat",
            json!({ "messages": message, "options": { "temperature": 9 } }),
            400,
            "options.temperature",
        ),
        (
            "/api/chat",
            json!({ "messages": message, "options": { "num_ctx": 1 << 30 } }),
            400,
            "--ctx-size",
        ),
        (
            "/api/chat",
            json!({ "messages": [{ "role": "user", "content": "Hi", "images": ["aGk="] }] }),
            400,
            "images",
        ),
        (
            "/api/generate",
            json!({ "prompt": "Hi", "template": "{{ .Prompt }}" }),
            400,
            "template",
        ),
        (
            "/api/generate",
            json!({ "prompt": "Hi", "context": [1, 2] }),
            400,
            "context",
        ),
        (
            "/api/generate",
            json!({ "prompt": "Hi", "raw": true, "system": "x" }),
            400,
            "system",
        ),
        ("/api/pull", json!({ "model": "llama3" }), 501, "/api/pull"),
        (
            "/api/create",
            json!({ "model": "x", "from": "y" }),
            501,
            "tokenmill serve",
        ),
        ("/api/unknown", json!({}), 404, "/api/unknown"),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text());
        let error = reply.json();
        assert!(
            error["error"].as_str().is_some_and(|text| text.contains(word)),
            "{path}: {error}"
        );
        assert_eq!(error.as_object().map(serde_json::Map::len), Some(1));
    }
    server.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_has_the_type_that_its_file_says_and_is_named_as_its_file() {
    // None of its tensors is as wide as the type's blocks, so all have other types.
    let server = TestServer::start_tiny("nomic_bert").await;
    let show = server
        .post_ok("/api/show", &json!({ "model": "nomic_bert" }))
        .await;
    let tags = server.get("/api/tags").await.json();
    for details in [&show["details"], &tags["models"][0]["details"]] {
        assert_eq!(details["quantization_level"], "Q4_K_M", "{details}");
    }
    assert_eq!(show["modelfile"], "FROM model-Q4_K_M.gguf");
    let props = server.get("/props").await.json();
    assert_eq!(
        (&props["model_path"], &props["model_alias"]),
        (&json!("model-Q4_K_M.gguf"), &json!("nomic_bert"))
    );
}
