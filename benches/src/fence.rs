//! What a fenced write costs beside a plain write of the same resource. Each function makes
//! contenders, of which the first is the plain write.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::rc::Rc;
use std::time::Duration;

use postgres::NoTls;
use rusqlite::TransactionBehavior;
use wheellock::Client;
use wheellock_fence::{file, sql};
use wheellock_fixture::{Postgres, Server};

use crate::harness::Contender;

/// The token of every fenced write: a holder writes with one token as often as it likes.
const TOKEN: u64 = 7;
/// The same token as a parameter of SQL.
const SQL_TOKEN: i64 = 7;
const RESOURCE: &str = "accounts:1";
const UPDATE: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = 1";
const ACCOUNTS: &str = "\
    CREATE TABLE IF NOT EXISTS accounts (id integer PRIMARY KEY, balance bigint);
    INSERT INTO accounts VALUES (1, 0) ON CONFLICT DO NOTHING";
/// The content of a file.
const CONTENT: [u8; 1024] = [b'x'; 1024];
/// No other process writes the file, so nothing is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The folder of the files that are written, under the system's temporary folder.
#[derive(Debug)]
pub struct FenceFolder(PathBuf);

impl FenceFolder {
    /// Makes the folder, which is removed with this value.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("wheellock-fence-report-{}", process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// The file system of the folder, on which a sync may cost much or nothing.
    #[must_use]
    pub fn file_system(&self) -> String {
        let mut stat = process::Command::new("stat");
        let output = stat.args(["--file-system", "--format=%T"]).arg(&self.0).output();
        let name = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
        name.map_or_else(|| "unknown".to_owned(), |name| name.trim().to_owned())
    }
}

impl Drop for FenceFolder {
    fn drop(&mut self) {
        // What is left is removed with the temporary folder.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// `PostgreSQL`, the table form. Each call prepares its statement, as in the documentation of `raise`.
#[must_use]
pub fn postgres_transactions(server: &Postgres) -> Vec<Contender> {
    let [mut plain, mut fenced] = [postgres_client(server), postgres_client(server)];
    vec![
        Contender::timed("BEGIN, UPDATE, COMMIT", move || {
            let mut transaction = plain.transaction().expect("the server is there");
            transaction.execute(UPDATE, &[]).expect("the row is there");
            transaction.commit().expect("it is the only writer");
        }),
        Contender::timed("BEGIN, raise, UPDATE, COMMIT", move || {
            let mut transaction = fenced.transaction().expect("the server is there");
            let raised = wheellock_fence::postgres::raise(&mut transaction, RESOURCE, TOKEN);
            raised.expect("the token is the newest");
            transaction.execute(UPDATE, &[]).expect("the row is there");
            transaction.commit().expect("it is the only writer");
        }),
    ]
}

/// The same transactions with statements that were prepared once.
#[must_use]
pub fn prepared_postgres_transactions(server: &Postgres) -> Vec<Contender> {
    let [mut plain, mut fenced] = [postgres_client(server), postgres_client(server)];
    let update = plain.prepare(UPDATE).expect("the table is there");
    let raise = fenced.prepare(sql::RAISE).expect("the table is there");
    let fenced_update = fenced.prepare(UPDATE).expect("the table is there");
    vec![
        Contender::timed("BEGIN, UPDATE, COMMIT", move || {
            let mut transaction = plain.transaction().expect("the server is there");
            transaction.execute(&update, &[]).expect("the row is there");
            transaction.commit().expect("it is the only writer");
        }),
        Contender::timed("BEGIN, RAISE, UPDATE, COMMIT", move || {
            let mut transaction = fenced.transaction().expect("the server is there");
            let raised = transaction.execute(&raise, &[&RESOURCE, &SQL_TOKEN]);
            raised.expect("the token is the newest");
            transaction.execute(&fenced_update, &[]).expect("the row is there");
            transaction.commit().expect("it is the only writer");
        }),
    ]
}

/// `PostgreSQL`, the column form, with statements that were prepared once.
#[must_use]
pub fn postgres_updates(server: &Postgres) -> Vec<Contender> {
    let [mut plain, mut fenced] = [postgres_client(server), postgres_client(server)];
    let update = plain.prepare(UPDATE).expect("the table is there");
    let made = fenced.batch_execute(&format!(
        "CREATE TABLE fenced_accounts (id integer PRIMARY KEY, balance bigint, {});
        INSERT INTO fenced_accounts VALUES (1, 0)",
        sql::COLUMN
    ));
    made.expect("no such table is there");
    let set_token = sql::set_column("$1");
    let fenced_update = fenced.prepare(&format!(
        "UPDATE fenced_accounts SET balance = balance + 1, {set_token} WHERE id = 1"
    ));
    let fenced_update = fenced_update.expect("the table is there");
    vec![
        Contender::timed("UPDATE", move || {
            plain.execute(&update, &[]).expect("the row is there");
        }),
        Contender::timed("UPDATE with set_column", move || {
            fenced.execute(&fenced_update, &[&SQL_TOKEN]).expect("the token is the newest");
        }),
    ]
}

fn postgres_client(server: &Postgres) -> postgres::Client {
    let mut client =
        postgres::Client::connect(&server.parameters(), NoTls).expect("the server is there");
    wheellock_fence::postgres::create_table(&mut client).expect("it is the only session");
    client.batch_execute(ACCOUNTS).expect("it is the only session");
    client
}

/// `SQLite` on a file, the table form.
#[must_use]
pub fn sqlite_transactions(folder: &FenceFolder) -> Vec<Contender> {
    let mut plain = sqlite_database(&folder.0.join("plain.db"));
    let mut fenced = sqlite_database(&folder.0.join("fenced.db"));
    vec![
        Contender::timed("BEGIN, UPDATE, COMMIT", move || {
            let transaction = plain.transaction_with_behavior(TransactionBehavior::Immediate);
            let transaction = transaction.expect("it is the only writer");
            transaction.execute(UPDATE, []).expect("the row is there");
            transaction.commit().expect("the disk has space");
        }),
        Contender::timed("BEGIN, raise, UPDATE, COMMIT", move || {
            let transaction = fenced.transaction_with_behavior(TransactionBehavior::Immediate);
            let transaction = transaction.expect("it is the only writer");
            let raised = wheellock_fence::sqlite::raise(&transaction, RESOURCE, TOKEN);
            raised.expect("the token is the newest");
            transaction.execute(UPDATE, []).expect("the row is there");
            transaction.commit().expect("the disk has space");
        }),
    ]
}

fn sqlite_database(path: &Path) -> rusqlite::Connection {
    let database = rusqlite::Connection::open(path).expect("the folder is there");
    database.pragma_update(None, "journal_mode", "WAL").expect("the file is new");
    database.pragma_update(None, "synchronous", "NORMAL").expect("the file is new");
    wheellock_fence::sqlite::create_table(&database).expect("the file is new");
    database.execute_batch(ACCOUNTS).expect("the file is new");
    database
}

/// Redis, with one connection for both.
#[must_use]
pub fn redis_writes(server: &Server) -> Vec<Contender> {
    let client = redis::Client::open(server.url()).expect("it is an address");
    let connection = client.get_connection().expect("the server is there");
    let connection = Rc::new(RefCell::new(connection));
    let mut set = redis::cmd("SET");
    set.arg(RESOURCE).arg(150);
    let (plain, plain_set) = (Rc::clone(&connection), set.clone());
    vec![
        Contender::timed("SET", move || {
            plain_set.exec(&mut *plain.borrow_mut()).expect("the server is there");
        }),
        Contender::timed("write of SET", move || {
            let connection = &mut *connection.borrow_mut();
            let written = wheellock_fence::redis::write::<()>(connection, RESOURCE, TOKEN, &set);
            written.expect("the token is the newest");
        }),
    ]
}

/// A file of 1 KiB, which is on the disk when a write returns.
#[must_use]
pub fn file_writes(folder: &FenceFolder) -> Vec<Contender> {
    let (plain, fenced) = (folder.0.clone(), folder.0.join("fenced"));
    vec![
        Contender::timed("write, sync, rename, sync", move || {
            replace_plainly(&plain).expect("the disk has space");
        }),
        Contender::timed("replace", move || {
            file::replace(&fenced, TOKEN, &CONTENT, PATIENCE).expect("the token is the newest");
        }),
    ]
}

fn replace_plainly(folder: &Path) -> io::Result<()> {
    let new = folder.join("plain-new");
    let mut file = File::create(&new)?;
    file.write_all(&CONTENT)?;
    file.sync_all()?;
    fs::rename(&new, folder.join("plain"))?;
    File::open(folder)?.sync_all()
}

/// Where the token comes from: a plain lock without and with a token, and a lock that always has one.
#[must_use]
pub fn tokens(server: &Server) -> Vec<Contender> {
    let client = Client::connect(&server.url()).expect("the server is there");
    let (plain, drawing) = (client.lock("bench:plain"), client.lock("bench:drawing"));
    let fenced = client.fenced_lock("bench:fenced");
    vec![
        Contender::timed("lock, unlock", move || {
            plain.lock().expect("the lock is free").unlock().expect("it was held");
        }),
        Contender::timed("lock, draw_token, unlock", move || {
            let guard = drawing.lock().expect("the lock is free");
            guard.draw_token().expect("it is held");
            guard.unlock().expect("it was held");
        }),
        Contender::timed("fenced lock, unlock", move || {
            fenced.lock().expect("the lock is free").unlock().expect("it was held");
        }),
    ]
}
