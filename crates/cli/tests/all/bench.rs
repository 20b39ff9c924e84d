//! `bench`: its tables and its figures.

use serde_json::Value;

use crate::support::tokenmill;

#[test]
fn a_model_that_predicts_no_tokens_is_refused_in_the_words_of_run() {
    let encoder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/encoders/xlmr_rerank/model-Q4_K_M.gguf"
    );
    for line in [
        &["bench", encoder][..],
        &["chat", encoder],
        &["run", encoder, "Hello"],
    ] {
        let error = tokenmill(line).failed(3);
        assert!(
            error.contains("this model embeds or ranks texts"),
            "{line:?}: {error}"
        );
    }
}

#[test]
fn bench_prints_its_table_in_three_forms() {
    let line = "bench demo -p 16 -n 4,8 -d 32 -r 2 -ctk q8_0 -ctv q8_0 -o";
    let run = |form: &str| tokenmill(line.split(' ').chain([form])).ok();
    let table = run("md");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines[0],
        "| model | size | params | backend | threads | test | t/s |"
    );
    let tests: Vec<&str> = lines[2..]
        .iter()
        .map(|line| line.split('|').nth(6).unwrap().trim())
        .collect();
    assert_eq!(tests, ["pp16 @ d32", "tg4 @ d32", "tg8 @ d32"]);
    assert_eq!(run("csv").lines().count(), 4);
    let json: Value = serde_json::from_str(&run("json")).unwrap();
    let last = &json[2];
    assert_eq!((&last["n_prompt"], &last["n_gen"]), (&0.into(), &8.into()));
    assert_eq!((&last["n_depth"], &last["type_k"]), (&32.into(), &"q8_0".into()));
    for row in json.as_array().unwrap() {
        let samples: Vec<f64> = row["samples_ts"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_f64)
            .collect();
        assert_eq!(samples.len(), 2);
        let mean = samples.iter().sum::<f64>() / 2.0;
        assert!((row["avg_ts"].as_f64().unwrap() - mean).abs() < mean * 1e-9);
        assert!(mean > 0.0);
    }
}

#[test]
fn bench_measures_sequences_side_by_side_and_says_what_the_engine_answers() {
    let run = |form: &str| {
        tokenmill([
            "bench", "demo", "--batch", "1,3", "-n", "8", "-r", "2", "-o", form,
        ])
        .ok()
    };
    let table = run("md");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows[0][6..9], ["test", "t/s", "over one"]);
    assert_eq!((rows[2][6], rows[2][8]), ("tg8x1", "1.00x"));
    assert_eq!(rows[3][6], "tg8x3");
    // The gain is the quotient of the speeds in its row.
    let number = |cell: &str| cell.split([' ', 'x']).next().unwrap().parse::<f64>().unwrap();
    let [one, three] = [2, 3].map(|idx: usize| number(rows[idx][7]));
    let gain = number(rows[3][8]);
    assert!((gain - three / one).abs() < 0.011, "{table}");
    let json: Value = serde_json::from_str(&run("json")).unwrap();
    for (row, n_seqs) in json.as_array().unwrap().iter().zip([1, 3]) {
        assert_eq!(row["n_seqs"], n_seqs);
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0);
        assert!(row["engine_ts"].as_f64().unwrap() > 0.0);
        assert!(row["engine_over_single"].as_f64().unwrap() > 0.0);
    }
    let refusal = tokenmill(["bench", "demo", "--batch", "2", "-n", "1"]).failed(2);
    assert!(refusal.contains("2 tokens or more"), "{refusal}");
}
