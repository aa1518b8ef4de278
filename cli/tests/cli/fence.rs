//! `wheellock fence`: a holder that has lost its lock writes nothing.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use wheellock_fixture::{Postgres, Server, TestProcess};

use crate::support::{FAILED, LOST, NAME, PATIENCE, SUCCESS, ended, run, wheellock};

/// A folder of its own, which ends with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("wheellock-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A shell's script, which finds `wheellock` on its path.
fn script(server: &Server, options: &[&str], script: &str, folder: &Folder) -> TestProcess {
    let mut command = run(server, options, &["sh", "-c", script]);
    TestProcess::spawn(command.env("PATH", path()).current_dir(&folder.0))
}

fn path() -> String {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_wheellock"));
    let own = program.parent().unwrap().display().to_string();
    format!("{own}:{}", std::env::var("PATH").unwrap())
}

#[test]
fn stopped_script_does_not_overwrite_file_of_next_holder() {
    let server = Server::start();
    let folder = Folder::new("stopped");
    // The script is stopped with all of its group, as by a debugger, and its lock ends. It is killed
    // with the group if it hears of the loss in time, so it leaves the group.
    let slow = "echo stopped; setsid sh -c 'read line <go; echo late | wheellock fence file out; \
                echo code $? >code' & wait";
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.0.join("go"), 0o600.into()).unwrap();
    let mut first = script(&server, &["--lease", "1"], slow, &folder);
    first.wait_for_line("stopped", PATIENCE);
    let write = "echo new | wheellock fence file out";
    let (code, output) = ended(script(&server, &[], write, &folder));
    assert_eq!(code, SUCCESS, "{output}");
    fs::write(folder.0.join("go"), "\n").unwrap();
    wheellock_fixture::wait_until("it has tried to write", PATIENCE, || {
        fs::read_to_string(folder.0.join("code")).is_ok_and(|code| code.ends_with('\n'))
    });
    assert_eq!(fs::read_to_string(folder.0.join("code")).unwrap(), format!("code {LOST}\n"));
    assert_eq!(fs::read_to_string(folder.0.join("out")).unwrap(), "new\n");
}

#[test]
fn a_stale_token_is_named_and_a_wrong_one_is_no_token() {
    let folder = Folder::new("stale");
    let fence = |token: &str, words: &[&str]| {
        let mut command = wheellock(&[&["fence"], words].concat());
        let command = command.current_dir(&folder.0).env("WHEELLOCK_TOKEN", token);
        ended(TestProcess::spawn(command.stdin(Stdio::null())))
    };
    assert_eq!(fence("7", &["file", "out\u{1b}"]).0, SUCCESS);
    let (code, output) = fence("6", &["file", "out\u{1b}"]);
    assert_eq!(code, LOST, "{output}");
    assert!(output.contains("the fencing token 6 is stale"), "{output}");
    assert!(output.contains("has seen 7") && !output.contains('\u{1b}'), "{output}");
    assert_eq!(fence("6", &["file", "--token", "8", "out\u{1b}"]).0, SUCCESS);
    for wrong in ["0", "", "-1", "x", "9223372036854775808", "18446744073709551616"] {
        for words in [&["file", "out"][..], &["sql", "orders"]] {
            let (code, output) = fence(wrong, words);
            assert_eq!(code, FAILED, "{wrong:?} {words:?}: {output}");
        }
    }
    let mut command = wheellock(&["fence", "file", "out"]);
    let (code, output) = ended(TestProcess::spawn(command.current_dir(&folder.0)));
    assert_eq!(code, FAILED);
    assert!(output.contains("--token"), "{output}");
    let (code, output) = fence("7", &["file", "none/out"]);
    assert_eq!(code, FAILED);
    assert!(output.contains("none/out"), "{output}");
}

#[test]
fn sql_output_quotes_name_and_stops_at_first_error() {
    let sql = |words: &[&str]| {
        let mut command = wheellock(&[&["fence", "sql", "--token", "7"], words].concat());
        ended(TestProcess::spawn(&mut command))
    };
    let (code, output) = sql(&["it's $2 and $1"]);
    assert_eq!(code, SUCCESS);
    let insert = "INSERT INTO wheellock_fence (resource, token) VALUES ('it''s $2 and $1', 7)\n";
    assert!(output.starts_with(&format!("\\set ON_ERROR_STOP on\nBEGIN;\n{insert}")), "{output}");
    assert!(output.ends_with(";\nCOMMIT;\n"), "{output}");
    let (_, output) = sql(&["--program", "sqlite3", "orders"]);
    assert!(output.starts_with(".bail on\nBEGIN;\n"), "{output}");
    // It would end a text where PostgreSQL is told to take it so.
    let (code, output) = sql(&["\\', 1); DELETE FROM wheellock_fence; --"]);
    assert_eq!((code, output.contains("DELETE")), (FAILED, false), "{output}");
}

#[test]
fn without_a_token_no_transaction_is_printed() {
    let server = Server::start();
    let folder = Folder::new("unfenced");
    let print = "echo 'INSERT INTO orders VALUES (1);' | wheellock fence sql orders >out; cat out";
    for options in [&["--shared"][..], &["--on-unreachable", "run", "--wait", "1"]] {
        let mut command = run(&server, options, &["sh", "-c", print]);
        if options[0] == "--on-unreachable" {
            command.env("REDIS_URL", "redis://127.0.0.1:1");
        }
        command.env("PATH", path()).current_dir(&folder.0);
        let (code, output) = ended(TestProcess::spawn(&mut command));
        assert_eq!(code, SUCCESS, "{output}");
        assert!(output.contains("--token") && !output.contains("INSERT"), "{output}");
    }
}

#[test]
fn psql_commits_nothing_of_a_stale_holder() {
    if !Postgres::is_installed() && std::env::var_os("WHEELLOCK_POSTGRES").is_none() {
        return;
    }
    let (server, postgres, folder) = (Server::start(), Postgres::start(), Folder::new("psql"));
    let psql = format!("psql -q '{}'", postgres.parameters());
    let create = format!(
        "{{ wheellock fence sql --create; echo 'CREATE TABLE orders (state text);'; }} | {psql}"
    );
    let (code, output) = ended(script(&server, &[], &create, &folder));
    assert_eq!(code, SUCCESS, "{output}");
    // The last statement has no end, as in some files.
    let insert = format!(
        "echo \"INSERT INTO orders VALUES ('$WHEELLOCK_TOKEN')\" | wheellock fence sql {NAME} | {psql}"
    );
    for options in [&["--fair"][..], &["--exclusive"], &[]] {
        let (code, output) = ended(script(&server, options, &insert, &folder));
        assert_eq!(code, SUCCESS, "{options:?}: {output}");
    }
    let mut late = Command::new("sh");
    late.args(["-c", &insert]).env("PATH", path()).env("WHEELLOCK_TOKEN", "7");
    let (code, output) = ended(TestProcess::spawn(&mut late));
    assert_ne!(code, SUCCESS, "{output}");
    assert!(output.contains("stale_fencing_token"), "{output}");
    let mut count = Command::new("sh");
    count.args(["-c", &format!("{psql} -At -c 'SELECT count(*) FROM orders'")]);
    assert_eq!(ended(TestProcess::spawn(&mut count)), (SUCCESS, "3\n".to_owned()));
}
