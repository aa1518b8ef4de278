//! What is refused, and that a refusal changes nothing.

use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

use postgres::NoTls;
use wheellock_fence::redis::{fence_key, write};
use wheellock_fence::{FenceError, file, sql, sqlite};
use wheellock_fixture::{Cluster, Reply, Server};

use crate::LIMIT;
use crate::kinds::{Folder, NAME, TestServers};

const TOO_LARGE: u64 = 1 << 63;

#[test]
fn token_outside_valid_range_is_refused_before_any_request() {
    let folder = Folder::new();
    let path = folder.0.join("report.csv");
    for token in [0, TOO_LARGE, u64::MAX] {
        let refused = file::replace(&path, token, b"", LIMIT).unwrap_err();
        assert!(matches!(refused, FenceError::InvalidToken { token: it } if it == token));
        assert!(refused.to_string().contains(&token.to_string()), "{refused}");
    }
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "nothing was made");

    let mut database = rusqlite::Connection::open_in_memory().unwrap();
    let transaction = database.transaction().unwrap();
    let refused = sqlite::raise(&transaction, NAME, TOO_LARGE).unwrap_err();
    assert!(matches!(refused, FenceError::InvalidToken { .. }), "{refused:?}");
    let missing = sqlite::raise(&transaction, NAME, 1).unwrap_err();
    assert!(missing.to_string().contains("wheellock_fence"), "{missing}");
    assert!(matches!(missing, FenceError::Resource(_)), "{missing:?}");
}

#[test]
fn the_largest_token_is_taken() {
    let mut database = rusqlite::Connection::open_in_memory().unwrap();
    sqlite::create_table(&database).unwrap();
    sqlite::create_table(&database).unwrap();
    let transaction = database.transaction().unwrap();
    sqlite::raise(&transaction, "ü'; DROP TABLE wheellock_fence; --", TOO_LARGE - 1).unwrap();
    let stale = sqlite::raise(&transaction, "ü'; DROP TABLE wheellock_fence; --", 1).unwrap_err();
    assert!(stale.to_string().starts_with("the fencing token 1 is stale"), "{stale}");
    // Another resource has tokens of its own.
    sqlite::raise(&transaction, NAME, 1).unwrap();
}

#[test]
fn a_command_that_redis_refuses_raises_no_token() {
    let server = Server::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let set = redis::cmd("SET").arg(NAME).arg("1").to_owned();
    write::<()>(&mut connection, NAME, 5, &set).unwrap();
    let refused = [
        redis::cmd("LPUSH").arg(NAME).arg("1").to_owned(),
        redis::cmd("NO SUCH COMMAND"),
        redis::cmd("SET").arg(NAME).to_owned(),
        (0..8000).fold(redis::cmd("MSET"), |mut command, _| command.arg("x").to_owned()),
    ];
    for command in refused {
        let error = write::<()>(&mut connection, NAME, 9, &command).unwrap_err();
        assert!(matches!(error, FenceError::Resource(_)), "{error:?}");
        assert_eq!(server.command(&["GET", &fence_key(NAME)]).text(), "5", "{error}");
    }
    // Of a resource with no fence yet, there is none afterwards.
    let wrong = redis::cmd("INCR").arg("text").to_owned();
    server.command(&["SET", "text", "x"]);
    write::<()>(&mut connection, "text", 9, &wrong).unwrap_err();
    assert_eq!(server.command(&["EXISTS", &fence_key("text")]).integer(), 0);
    // The reply is the command's.
    let count = redis::cmd("INCR").arg("count").to_owned();
    assert_eq!(write::<i64>(&mut connection, "count", 1, &count).unwrap(), 1);
    let absent = redis::cmd("GETDEL").arg("absent").to_owned();
    assert_eq!(write::<Option<String>>(&mut connection, "absent", 1, &absent).unwrap(), None);
}

#[test]
fn a_fence_of_redis_that_holds_something_else_is_left_alone() {
    let server = Server::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let set = redis::cmd("SET").arg(NAME).arg("1").to_owned();
    for fence in [&["SET", "text"][..], &["LPUSH", "item"], &["SET", "12 "], &["SET", ""]] {
        server.command(&["DEL", &fence_key(NAME)]);
        server.command(&[fence[0], &fence_key(NAME), fence[1]]);
        let before = server.command(&["DUMP", &fence_key(NAME)]);
        let error = write::<()>(&mut connection, NAME, 9, &set).unwrap_err();
        assert!(matches!(error, FenceError::Resource(_)), "{error:?}");
        assert_eq!(server.command(&["DUMP", &fence_key(NAME)]), before);
        assert_eq!(server.command(&["GET", NAME]), Reply::Nil);
    }
}

#[test]
fn tokens_of_redis_are_compared_as_numbers() {
    let server = Server::start();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let set = redis::cmd("SET").arg(NAME).arg("1").to_owned();
    // Beyond what a number of Lua keeps, and with more digits.
    let growing = [1, 9, 10, 9_007_199_254_740_992, 9_007_199_254_740_993, TOO_LARGE - 1];
    for (place, token) in growing.into_iter().enumerate() {
        write::<()>(&mut connection, NAME, token, &set).unwrap();
        for older in &growing[..place] {
            let error = write::<()>(&mut connection, NAME, *older, &set).unwrap_err();
            let FenceError::Stale(stale) = error else { panic!("{error:?}") };
            assert_eq!(stale.newest(), Some(token));
        }
    }
}

#[test]
fn fence_key_shares_slot_of_resource_and_is_unique_per_name() {
    let cluster = Cluster::start(3, 0);
    let names = ["balance", "{balance}", "{account 7}:balance", "a{b}c{d}", "a{b", "{", "{{x}}"];
    for name in names {
        let slot = |key: &str| cluster.slot_of(key);
        assert_eq!(slot(name), slot(&fence_key(name)), "{name}");
    }
    let fences: std::collections::BTreeSet<String> = names.map(fence_key).into();
    assert_eq!(fences.len(), names.len(), "{fences:?}");
}

#[test]
fn a_user_without_rights_for_the_fence_writes_nothing() {
    let server = Server::start();
    let set = redis::cmd("SET").arg(NAME).arg("1").to_owned();
    let connect = |user: &str, rules: &[&str]| {
        let base = ["ACL", "SETUSER", user, "on", "nopass", "+@all", "~*"];
        server.command(&[&base[..], rules].concat());
        let url = format!("redis://{user}:x@{}/", server.address());
        redis::Client::open(url).unwrap().get_connection().unwrap()
    };
    let mut blind = connect("blind", &["resetkeys", &format!("~{NAME}")]);
    write::<()>(&mut blind, NAME, 5, &set).unwrap_err();
    assert_eq!(server.command(&["GET", NAME]), Reply::Nil);
    // A user that may not delete takes a token back too.
    let mut keeper = connect("keeper", &["-del"]);
    let wrong = redis::cmd("LPUSH").arg(NAME).to_owned();
    write::<()>(&mut keeper, NAME, 9, &wrong).unwrap_err();
    write::<()>(&mut keeper, NAME, 8, &set).unwrap();
    assert_eq!(server.command(&["GET", &fence_key(NAME)]).text(), "8");
    // A time to live that somebody has given to the fence ends with the next write.
    server.command(&["PEXPIRE", &fence_key(NAME), "100000"]);
    write::<()>(&mut keeper, NAME, 8, &set).unwrap();
    assert_eq!(server.command(&["PTTL", &fence_key(NAME)]).integer(), -1);
}

#[test]
fn only_the_check_of_the_fence_makes_an_error_a_stale_token() {
    let mut database = rusqlite::Connection::open_in_memory().unwrap();
    database.execute("CREATE TABLE t (v integer CONSTRAINT positive CHECK (v > 0))", []).unwrap();
    let error = database.execute("INSERT INTO t VALUES (-1)", []).unwrap_err();
    assert!(!sqlite::is_stale(&error), "{error}");
    let transaction = database.transaction().unwrap();
    assert!(!sqlite::is_stale(&transaction.execute("no statement", []).unwrap_err()));
    let Some(setup) = TestServers::with_postgres() else { return };
    let mut client = postgres::Client::connect(&setup.parameters(), NoTls).unwrap();
    let check = "CREATE TABLE t (v integer CONSTRAINT positive CHECK (v > 0))";
    client.batch_execute(check).unwrap();
    let error = client.execute("INSERT INTO t VALUES (-1)", &[]).unwrap_err();
    assert!(error.as_db_error().is_some() && !wheellock_fence::postgres::is_stale(&error));
}

#[test]
fn a_record_of_a_file_that_is_damaged_is_named() {
    let folder = Folder::new();
    let path = folder.0.join("report.csv");
    file::replace(&path, 1, b"1", LIMIT).unwrap();
    for damaged in ["", "1 2", "1 2 x", "1 2 3 4"] {
        fs::write(folder.0.join("report.csv.fence/record"), damaged).unwrap();
        let Err(FenceError::Resource(error)) = file::replace(&path, 2, b"2", LIMIT) else {
            panic!("{damaged:?} is no record");
        };
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("report.csv.fence/record"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"1");
    }
}

#[test]
fn a_file_keeps_its_permissions_and_its_links() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let folder = Folder::new();
    let (path, link) = (folder.0.join("report.csv"), folder.0.join("latest.csv"));
    fs::write(&path, b"0").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("report.csv", &link).unwrap();
    file::replace(&link, 7, b"7", LIMIT).unwrap();
    assert_eq!(fs::read_link(&link).unwrap().to_str(), Some("report.csv"));
    assert_eq!(fs::read(&path).unwrap(), b"7");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    // By either name it is one file with one fence.
    let stale = file::replace(&path, 6, b"6", LIMIT).unwrap_err();
    assert!(matches!(stale, FenceError::Stale(_)), "{stale:?}");
    let names: Vec<_> = fs::read_dir(folder.0.join("report.csv.fence")).unwrap().collect();
    assert_eq!(names.len(), 2, "the lock and the record: {names:?}");
}

#[test]
fn a_file_in_no_folder_and_a_folder_are_refused() {
    let folder = Folder::new();
    let none = Duration::ZERO;
    let dangling = folder.0.join("dangling");
    std::os::unix::fs::symlink("nothing", &dangling).unwrap();
    let long = folder.0.join("x".repeat(252));
    for path in ["none/report.csv", "..", "/", "/dev/null"].map(|it| folder.0.join(it)) {
        let refused = file::replace(&path, 1, b"", none).unwrap_err();
        assert!(matches!(refused, FenceError::Resource(_)), "{refused:?}");
    }
    for path in [&dangling, &long] {
        file::replace(path, 1, b"", none).unwrap_err();
    }
    assert!(fs::symlink_metadata(&dangling).unwrap().is_symlink());
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing was made");
}

#[test]
fn a_link_in_the_fence_is_not_followed() {
    let folder = Folder::new();
    let (path, victim) = (folder.0.join("report.csv"), folder.0.join("victim"));
    fs::write(&victim, b"of somebody").unwrap();
    file::replace(&path, 1, b"1", LIMIT).unwrap();
    for name in ["content-2", "record-new"] {
        std::os::unix::fs::symlink(&victim, folder.0.join("report.csv.fence").join(name)).unwrap();
    }
    file::replace(&path, 2, b"2", LIMIT).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"of somebody");
    assert_eq!(fs::read(&path).unwrap(), b"2");
    assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
}

#[test]
fn postgres_raise_on_old_snapshot_fails_and_succeeds_on_retry() {
    let Some(setup) = TestServers::with_postgres() else { return };
    let connect = || postgres::Client::connect(&setup.parameters(), NoTls).unwrap();
    let (mut first, mut second) = (connect(), connect());
    first.batch_execute(sql::CREATE_TABLE).unwrap();
    let isolation = postgres::IsolationLevel::RepeatableRead;
    let mut late = second.build_transaction().isolation_level(isolation).start().unwrap();
    // Its snapshot is from before the other one's commit.
    late.query("SELECT 1 FROM wheellock_fence", &[]).unwrap();
    let mut early = first.transaction().unwrap();
    wheellock_fence::postgres::raise(&mut early, NAME, 1).unwrap();
    early.commit().unwrap();
    let refused = wheellock_fence::postgres::raise(&mut late, NAME, 2).unwrap_err();
    let FenceError::Resource(error) = refused else { panic!("{refused:?}") };
    assert_eq!(error.code().unwrap().code(), "40001");
    drop(late);
    let mut again = second.transaction().unwrap();
    wheellock_fence::postgres::raise(&mut again, NAME, 2).unwrap();
    again.commit().unwrap();
}
