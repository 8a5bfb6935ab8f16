# uncork on a CPU: docker build -t uncork . && docker run --rm -v "$PWD:/models" uncork check model.onnx
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md CHANGELOG.md LICENSE CITATION.cff ./
COPY src ./src
RUN python -m venv /opt/uncork \
    && /opt/uncork/bin/pip install --no-cache-dir --no-compile ".[onnx,gguf,hf]"

FROM python:3.12-slim
COPY --from=build /opt/uncork /opt/uncork
ENV PATH="/opt/uncork/bin:$PATH" PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 1000 --create-home uncork
USER 1000
WORKDIR /models
ENTRYPOINT ["uncork"]
CMD ["--help"]
