//! HTTP for people, probes and Prometheus: `/healthz` (the process works), `/readyz` (the rank is
//! ready for work), `/status` (everything, as JSON), `/metrics`. It only reads, and a slow reader
//! holds nothing but its own connection.

use crate::metrics;
use crate::ready::Standing;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at once; further ones wait in the listen backlog.
const MAX_CONNECTIONS: usize = 64;
/// Pause after an accept error (out of file descriptors), so that it cannot spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// An actor that is in one message for so long is frozen: the process is not healthy.
const FROZEN_MS: u64 = 10_000;
/// What is at `/`.
const INDEX: &str = "\
/healthz  the process works
/readyz   the rank is ready for work
/status   everything, as JSON
/metrics  for Prometheus
";

/// Serves in the background until the process ends; returns where.
///
/// # Errors
/// If the address cannot be had.
pub(crate) async fn serve(address: SocketAddr, standing: Standing) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let local = listener.local_addr()?;
    let app = Router::new()
        .route("/", get(index))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .route("/metrics", get(metrics_text))
        .with_state(standing);
    let bounded = Bounded { listener, room: Arc::new(Semaphore::new(MAX_CONNECTIONS)) };
    tokio::spawn(async move {
        if let Err(error) = axum::serve(bounded, app).await {
            tracing::error!(%error, "the HTTP server ended");
        }
    });
    Ok(local)
}

async fn index() -> &'static str {
    INDEX
}

async fn healthz(State(standing): State<Standing>) -> Response {
    let actors = standing.status().map(|s| s.actors).unwrap_or_default();
    match actors.iter().find(|a| a.busy_ms >= FROZEN_MS) {
        None => (StatusCode::OK, "ok\n").into_response(),
        Some(frozen) => {
            let why = format!(
                "the {} actor has been in one message for {} ms\n",
                frozen.name, frozen.busy_ms
            );
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
    }
}

async fn readyz(State(standing): State<Standing>) -> Response {
    match standing.ready() {
        Ok(()) => (StatusCode::OK, "ready\n").into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

async fn status(State(standing): State<Standing>) -> Response {
    let ready = standing.ready().err();
    let body = match standing.status() {
        Some(status) => serde_json::to_string(&status),
        None => serde_json::to_string(&serde_json::json!({ "joined": false, "why": ready })),
    };
    match body {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{e}\n")).into_response(),
    }
}

async fn metrics_text(State(standing): State<Standing>) -> Response {
    let Some(status) = standing.status() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "not joined yet\n").into_response();
    };
    // Bounded by the call's own limit; a master that does not answer is shown by its absence.
    let cluster = match standing.masters_handle() {
        Some(handle) => handle.stats().await.ok(),
        None => None,
    };
    let kind = [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)];
    (kind, metrics::render(&status, cluster.as_ref())).into_response()
}

/// Accepts while there is room.
struct Bounded {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl Listener for Bounded {
    type Io = Counted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Counted, SocketAddr) {
        loop {
            // The semaphore is never closed; were it, refusing everybody is what a pause does.
            if let Ok(permit) = self.room.clone().acquire_owned().await {
                match self.listener.accept().await {
                    Ok((stream, peer)) => {
                        return (Counted { stream, _permit: permit }, peer);
                    }
                    Err(error) => tracing::debug!(%error, "HTTP accept failed"),
                }
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that counts for as long as it lives.
struct Counted {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
