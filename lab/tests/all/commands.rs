//! The program itself, as CI and the end-to-end tests run it.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

#[test]
fn every_command_says_what_it_does() {
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let commands = help.split("Commands:\n").nth(1).unwrap();
    let commands: Vec<&str> = commands.lines().take_while(|line| !line.is_empty()).collect();
    assert!(commands.len() > 10, "{help}");
    for line in commands {
        let words = line.split_whitespace().count();
        assert!(words > 2, "a command without a description: {line}");
    }
}

#[test]
fn calls_are_read_from_lines() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lab"))
        .arg("read-calls")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let answer = r#"{"template": "<tool_call>", "tools": [], "text": "It is 4."}"#;
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{answer}").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let read: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        read,
        serde_json::json!({"calls": [], "reasoning": "", "text": "It is 4."})
    );
}
