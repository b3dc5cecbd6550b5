/* Browsers start no workers for pages from file://. This class runs the script of a worker in a hidden frame instead, so that
   the search works without a server. Material for MkDocs looks for `IFrameWorker` in the frame's parent. */
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source !== this.frame) return;
        const copy = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(copy);
        if (this.onmessage) this.onmessage(copy);
      });
      const page = frame.contentDocument;
      page.open();
      page.write(
        "<script>self.postMessage = (data) => parent.dispatchEvent(" +
          "new parent.MessageEvent('message', { data, source: self }));</scr" + "ipt>" +
          '<script src="' + new URL(url, location) + '"></scr' + "ipt>",
      );
      page.close();
    }
    postMessage(data) {
      const send = () => this.frame.dispatchEvent(new this.frame.MessageEvent("message", { data }));
      if (this.frame.document.readyState === "complete") send();
      else this.frame.addEventListener("load", send, { once: true });
    }
    terminate() {}
  };
}
