import java.io.File;
import org.codehaus.janino.Compiler;

/** Compiles Java files, by the compiler that Spark brings: a folder for classes, then the files. */
public class Compile {
    public static void main(String[] arguments) throws Exception {
        Compiler compiler = new Compiler();
        compiler.setTargetVersion(8);
        compiler.setSourceVersion(8);
        compiler.setDestinationDirectory(new File(arguments[0]), false);
        File[] files = new File[arguments.length - 1];
        for (int i = 1; i < arguments.length; i++) {
            files[i - 1] = new File(arguments[i]);
        }
        compiler.compile(files);
    }
}
