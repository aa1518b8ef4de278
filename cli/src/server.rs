//! The client for the server in the options or the environment.

use std::env;
use std::error::Error;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use wheellock::{Client, ClientBuilder, Credentials};

use crate::arguments::Server;

/// Connects to the server named by the options or the environment. `watchdog` replaces the default
/// lease.
pub(crate) fn connect(
    server: &Server,
    watchdog: Option<Duration>,
) -> Result<Client, Box<dyn Error>> {
    let mut builder = builder(server)?;
    if let Some(lease) = watchdog {
        builder = builder.watchdog_lease(lease);
    }
    Ok(builder.build()?)
}

/// A client builder for the server named by the options or the environment. An error if no server
/// is named, or if the password file cannot be read.
pub(crate) fn builder(server: &Server) -> Result<ClientBuilder, Box<dyn Error>> {
    let url = match &server.redis {
        Some(url) => url.clone(),
        None => url_of_environment()?,
    };
    let mut builder = Client::builder().url(&url);
    if let Some(path) = &server.password_file {
        // Read once now, so that a missing file is an error at once.
        password(path).map_err(|error| unreadable(path, &error))?;
        let path = path.clone();
        // Read again at each connect, so that the password may change meanwhile.
        builder = builder.credentials(move || {
            let password = password(&path).map_err(|error| unreadable(&path, &error))?;
            Ok(Credentials::password(password))
        });
    }
    Ok(builder)
}

fn url_of_environment() -> Result<String, &'static str> {
    match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => Ok(url),
        Err(env::VarError::NotUnicode(_)) => Err("REDIS_URL is not UTF-8"),
        _ => Err("which server? Give --redis URL or set REDIS_URL"),
    }
}

fn password(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    // Editors end the last line with a line break.
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("the password file {} cannot be read: {error}", path.display())
}
