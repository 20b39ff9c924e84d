//! `--context-shift`: a text whose context is full continues as a new request with the remaining tokens
//! would.

use serde_json::Value;

use crate::support::{Outcome, tokenmill, tokenmill_with};

const STORY: &str = "Once upon a time there was a little girl who lived in a small house near the forest";
const N_CTX: usize = 64;

fn run(prompt: &str, n: &str, extra: &[&str]) -> Outcome {
    let base = [
        "run", "--raw", "demo", prompt, "--temp", "0", "-n", n, "-c", "64", "--json", "-l", "0-inf", "-l",
        "1-inf",
    ];
    tokenmill([&base[..], extra].concat())
}

fn json(outcome: Outcome) -> Value {
    serde_json::from_str(&outcome.ok()).unwrap()
}

fn ids(value: &Value) -> Vec<u64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect()
}

#[test]
fn a_text_goes_on_behind_its_context() {
    let whole = json(run(STORY, "20", &[]));
    let prompt = ids(&whole["prompt_ids"]);
    let cut = json(run(STORY, "200", &[]));
    let n_fitting = N_CTX - prompt.len();
    assert_eq!(cut["finish_reason"], "length");
    assert_eq!(
        ids(&cut["ids"]).len(),
        n_fitting,
        "without the flag the context ends it"
    );

    let shifted = run(STORY, "200", &["--context-shift", "--keep", "3"]);
    assert!(
        shifted.stderr.contains("the context was full"),
        "{}",
        shifted.stderr
    );
    let shifted = json(shifted);
    let found = ids(&shifted["ids"]);
    assert_eq!((found.len(), &shifted["finish_reason"]), (200, &"length".into()));
    assert_eq!(found[..n_fitting], ids(&cut["ids"]));
    // Half of what is not kept goes each time.
    let n_kept = 3 + usize::from(whole["prompt_ids"][0] == 0);
    let unit = (N_CTX - n_kept) / 2;
    let n_over = prompt.len() + 200 - N_CTX;
    assert_eq!(
        shifted["timings"]["dropped_n"].as_u64().unwrap() as usize,
        n_over.next_multiple_of(unit)
    );
    assert_eq!(
        shifted["timings"]["prompt_n"].as_u64().unwrap() as usize,
        prompt.len()
    );
}

#[test]
fn a_conversation_forgets_its_oldest_tokens() {
    let talk = "My name is Nora.\nWhat is 7 + 5?\nWhat is 3 + 4?\nTell me a story.\nTell me another.\n";
    let args = ["chat", "demo", "-c", "80", "--temp", "0", "-n", "30"];
    let ends = tokenmill_with(&args, talk);
    assert_ne!(ends.code, 0, "the conversation is too long: {}", ends.stderr);
    assert!(ends.stderr.contains("leaves no room"), "{}", ends.stderr);
    let goes_on = tokenmill_with(&[&args[..], &["--context-shift", "--keep", "8"]].concat(), talk);
    assert!(goes_on.stderr.contains("oldest"), "{}", goes_on.stderr);
    goes_on.ok();
}

#[test]
fn what_cannot_be_shifted_is_refused() {
    let line = run(STORY, "4", &["--context-shift", "--keep", "40"]).failed(2);
    assert!(
        line.starts_with("error: 40 tokens cannot be kept") && line.contains("31"),
        "{line}"
    );
    run(STORY, "4", &["--context-shift", "--keep", "-1"]).ok();
    let alone = run(STORY, "4", &["--keep", "4"]);
    assert_eq!(alone.code, 2);
    assert!(alone.stderr.contains("--context-shift"), "{}", alone.stderr);
    let line = run(STORY, "4", &["--context-shift", "--session", "no.tms"]).failed(2);
    assert!(line.contains("`--session` does not go with"), "{line}");
    // A prompt that is too long is refused, not cut.
    let long = STORY.repeat(6);
    let line = run(&long, "4", &["--context-shift"]).failed(3);
    assert!(line.contains("leaves no room"), "{line}");
}
