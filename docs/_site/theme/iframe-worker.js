// Search without a server: on file:// browsers refuse workers, so the search runs in a hidden frame of the page instead.

class FrameWorker extends EventTarget {
  constructor(address) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    this.loaded = new Promise((done, failed) => {
      const start = () => {
        document.body.append(this.frame);
        const inside = this.frame.contentWindow;
        inside.postMessage = (data) => this.answer(data);
        inside.importScripts = () => Promise.resolve(); // languages other than English
        const script = inside.document.createElement("script");
        Object.assign(script, { src: new URL(address, location.href).href, onload: done, onerror: failed });
        inside.document.body.append(script);
      };
      if (document.body) start();
      else addEventListener("DOMContentLoaded", start);
    });
  }

  postMessage(data) {
    this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
  }

  answer(data) {
    const event = new MessageEvent("message", { data });
    this.dispatchEvent(event);
    this.onmessage?.(event);
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
